// See access.h.
#include "access.h"

#include <algorithm>
#include <cstdio>
#include <string>

namespace vgpu {

namespace {

std::string hexadecimal(uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

std::string who(int lane) { return " (lane " + std::to_string(lane) + ")"; }

}  // namespace

void misaligned(uint64_t address, unsigned bytes, int lane) {
    throw Trap{ERROR_MISALIGNED_ADDRESS, std::to_string(bytes) + " bytes at " + hexadecimal(address) + " are not aligned" + who(lane)};
}

void outside(const Memory& memory, uint64_t address, unsigned bytes, int lane, Use use) {
    const char* verb = use == Use::read || use == Use::strong_read ? "reads " : use == Use::update ? "updates " : "writes ";
    throw Trap{ERROR_ILLEGAL_ADDRESS, verb + std::to_string(bytes) + " bytes at " + hexadecimal(address) + ": " +
               memory.describe(address) + who(lane)};
}

void unwritten(const Memory& memory, uint64_t address, int lane) {
    throw Trap{ERROR_LAUNCH_FAILED, "reads memory that was never written: " + memory.describe(address) + who(lane)};
}

void outside_shared(const Warp& warp, uint64_t address, int lane) {
    const uint32_t size = warp.block->shared.size(), own = warp.block->grid.program.static_shared;
    throw Trap{ERROR_ILLEGAL_ADDRESS, "shared memory at " + hexadecimal(address) + " is outside of the block's " +
               std::to_string(size) + " bytes" + (address < size ? ", of which the first " + std::to_string(own) +
               " are the kernel's and others the launch's" : "") + who(lane)};
}

uint64_t in_frame(const Op& op, unsigned bytes, uint32_t mask) {
    const auto at = static_cast<uint64_t>(op.offset[0]), size = static_cast<uint64_t>(op.literal[1]);
    if (!within(at, bytes, size))
        throw Trap{ERROR_ILLEGAL_ADDRESS, std::to_string(bytes) + " bytes at " + hexadecimal(at) + " of a variable for the parameters of calls " +
                   "that has " + std::to_string(size) + who(__builtin_ctz(mask))};
    if (at & (bytes - 1)) misaligned(at, bytes, __builtin_ctz(mask));
    return static_cast<uint64_t>(op.literal[0]) + at;
}

void writes_constant(const Memory& memory, uint64_t address, int lane) {
    throw Trap{ERROR_ILLEGAL_ADDRESS, "writes to constant memory: " + memory.describe(address) + who(lane)};
}

uint8_t* local_bytes(Warp& warp, uint64_t address, unsigned bytes, int lane) {
    const uint32_t size = warp.block->grid.program.local_bytes;
    if (address & (bytes - 1)) misaligned(address, bytes, lane);
    if (!within(address, bytes, size))
        throw Trap{ERROR_ILLEGAL_ADDRESS, "local memory at " + hexadecimal(address) + " is outside of the thread's " +
                   std::to_string(size) + " bytes" + who(lane)};
    return warp.local.data() + static_cast<size_t>(lane) * size + address;
}

uint8_t* parameter_bytes(Warp& warp, uint64_t address, unsigned bytes, int lane, Use use) {
    const auto& held = warp.block->grid.launch.parameters;
    if (address & (bytes - 1)) misaligned(address, bytes, lane);
    if ((use != Use::read && use != Use::strong_read) || !within(address, bytes, held.size()))
        throw Trap{ERROR_ILLEGAL_ADDRESS, "at " + hexadecimal(address) + " of the kernel's parameters, which are " +
                   std::to_string(held.size()) + " bytes, and only read" + who(lane)};
    return const_cast<uint8_t*>(held.data()) + address;
}

uint64_t sectors(const uint64_t* addresses, int count, unsigned bytes) {
    uint64_t touched[LANES * 2];
    int n = 0;
    for (int i = 0; i < count; ++i)
        for (uint64_t sector = addresses[i] / 32; sector <= (addresses[i] + bytes - 1) / 32; ++sector) touched[n++] = sector;
    std::sort(touched, touched + n);
    return static_cast<uint64_t>(std::unique(touched, touched + n) - touched);
}

// 32 banks of 4 bytes; accesses of 8 bytes go in two halves of the lanes, of 16 in four quarters. Lanes that want the
// same word are served at once.
uint64_t wavefronts(const uint64_t* addresses, int count, unsigned bytes) {
    const int group = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
    uint64_t total = 0;
    for (int first = 0; first < count; first += group) {
        uint64_t words[LANES * 4];
        int n = 0;
        for (int i = first; i < std::min(count, first + group); ++i)
            for (uint64_t word = addresses[i] / 4; word <= (addresses[i] + bytes - 1) / 4; ++word) words[n++] = word;
        std::sort(words, words + n);
        n = static_cast<int>(std::unique(words, words + n) - words);
        uint64_t banks[32] = {};
        for (int i = 0; i < n; ++i) ++banks[words[i] % 32];
        total += *std::max_element(banks, banks + 32);
    }
    return total;
}

void count_access(Warp& warp, const Op& op, uint32_t mask, int operand, unsigned bytes, Space space, Traffic traffic) {
    Counters& counters = warp.block->counters;
    uint64_t global[LANES], shared[LANES];
    int n = 0, m = 0;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const uint64_t address = address_of(warp, op, operand, __builtin_ctz(rest));
        const uint64_t window = address & WINDOW_MASK;
        if (space == Space::shared || (space == Space::generic && window == SHARED_WINDOW)) shared[m++] = address & ~WINDOW_MASK;
        else if (space == Space::global || (space == Space::generic && window == 0)) global[n++] = address;
    }
    if (n != 0) {
        const uint64_t touched = sectors(global, n, bytes);
        if (traffic == Traffic::load) ++counters.global_load_requests, counters.global_load_sectors += touched;
        else if (traffic == Traffic::store) ++counters.global_store_requests, counters.global_store_sectors += touched;
        else ++counters.async_copy_requests, counters.async_copy_sectors += touched;
    }
    if (m != 0) {
        const uint64_t waves = wavefronts(shared, m, bytes), least = (static_cast<uint64_t>(m) * bytes + 127) / 128;
        if (traffic == Traffic::load)
            ++counters.shared_load_requests, counters.shared_load_wavefronts += waves, counters.shared_load_least += std::min(waves, least);
        else
            ++counters.shared_store_requests, counters.shared_store_wavefronts += waves, counters.shared_store_least += std::min(waves, least);
    }
}

}  // namespace vgpu
