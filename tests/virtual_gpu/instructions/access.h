// One lane's access to memory: finds the bytes, checks bounds, alignment, life and initialisation. Every instruction that
// touches memory goes through here.
#pragma once

#include <cstdint>

#include "../core/warp.h"

namespace vgpu {

enum class Space : uint8_t { generic, global, shared, local, parameter };

// The allocation that the lane before hit: most lanes of a warp hit the same one.
struct Hint {
    const Allocation* last = nullptr;
};

[[noreturn]] void misaligned(uint64_t address, unsigned bytes, int lane);
[[noreturn]] void outside(const Memory& memory, uint64_t address, unsigned bytes, int lane, Use use);
[[noreturn]] void unwritten(const Memory& memory, uint64_t address, int lane);
[[noreturn]] void outside_shared(const Warp& warp, uint64_t address, int lane);

// Where in a thread's frame an access of a .param variable of a call lies: bounds and alignment are the variable's own.
uint64_t in_frame(const Op& op, unsigned bytes, uint32_t mask);
[[noreturn]] void writes_constant(const Memory& memory, uint64_t address, int lane);
uint8_t* local_bytes(Warp& warp, uint64_t address, unsigned bytes, int lane);
uint8_t* parameter_bytes(Warp& warp, uint64_t address, unsigned bytes, int lane, Use use);

inline uint8_t* shared_bytes(Warp& warp, uint64_t address, unsigned bytes, int lane, Use use) {
    SharedMemory& shared = warp.block->shared;
    if (address & (bytes - 1)) misaligned(address, bytes, lane);
    if (!shared.holds(address, bytes)) outside_shared(warp, address, lane);
    const auto at = static_cast<uint32_t>(address);
    shared.touch(at, bytes, warp.index, use);
    return shared.at(at);
}

inline uint8_t* global_bytes(Warp& warp, uint64_t address, unsigned bytes, int lane, Use use, Hint& hint) {
    Memory& memory = warp.block->grid.memory;
    if (address & (bytes - 1)) misaligned(address, bytes, lane);
    const Allocation* found = hint.last;
    if (found == nullptr || address - found->begin >= found->bytes) hint.last = found = memory.find(address);
    if (found == nullptr || !found->live || bytes > found->bytes || address - found->begin > found->bytes - bytes)
        outside(memory, address, bytes, lane, use);
    if (use != Use::read && use != Use::strong_read && found->kind == Kind::constant) writes_constant(memory, address, lane);
    if (use == Use::write || use == Use::strong_write) memory.mark_access(address, bytes);
    else if (warp.block->grid.options.check_initialised && !memory.written(address, bytes)) unwritten(memory, address, lane);
    return reinterpret_cast<uint8_t*>(address);
}

template <Space SPACE>
inline uint8_t* bytes_at(Warp& warp, uint64_t address, unsigned bytes, int lane, Use use, Hint& hint) {
    if constexpr (SPACE == Space::global) return global_bytes(warp, address, bytes, lane, use, hint);
    if constexpr (SPACE == Space::shared) return shared_bytes(warp, address, bytes, lane, use);
    if constexpr (SPACE == Space::local) return local_bytes(warp, address, bytes, lane);
    if constexpr (SPACE == Space::parameter) return parameter_bytes(warp, address, bytes, lane, use);
    switch (address & WINDOW_MASK) {
        case SHARED_WINDOW: return shared_bytes(warp, address & ~WINDOW_MASK, bytes, lane, use);
        case LOCAL_WINDOW: return local_bytes(warp, address & ~WINDOW_MASK, bytes, lane);
        case PARAMETER_WINDOW: return parameter_bytes(warp, address & ~WINDOW_MASK, bytes, lane, use);
        default: return global_bytes(warp, address, bytes, lane, use, hint);
    }
}

// The address operand of a lane, with the instruction's offset; `which` of its addresses it is.
inline uint64_t address_of(Warp& warp, const Op& op, int operand, int lane, int which = 0) {
    const uint64_t base = op.wide[which] ? lanes<uint64_t>(warp, op.at[operand])[lane] : lanes<uint32_t>(warp, op.at[operand])[lane];
    return base + static_cast<uint64_t>(op.offset[which]);
}

// Counts one request of the lanes of `mask`; `operand` is the address. Only called while counting.
enum class Traffic : uint8_t { load, store, async_copy };
void count_access(Warp& warp, const Op& op, uint32_t mask, int operand, unsigned bytes, Space space, Traffic traffic);
// 32-byte sectors that these addresses touch; wavefronts of shared memory that they need.
uint64_t sectors(const uint64_t* addresses, int count, unsigned bytes);
uint64_t wavefronts(const uint64_t* addresses, int count, unsigned bytes);

// Where each lane of `mask` finds its BYTES; `operand` is the address. All of a load or store but the copying: kept out
// of the handlers, which are many.
template <Space SPACE, unsigned BYTES, Use USE>
[[gnu::noinline]] void find_bytes(Warp& warp, const Op& op, uint32_t mask, int operand, uint8_t** at) {
    if (warp.block->grid.options.count && SPACE != Space::parameter)
        count_access(warp, op, mask, operand, BYTES, SPACE, USE == Use::read ? Traffic::load : Traffic::store);
    Hint hint;
    Use use = USE;
    if ((SPACE == Space::shared || SPACE == Space::generic) && op.strong) use = USE == Use::read ? Use::strong_read : Use::strong_write;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        at[l] = bytes_at<SPACE>(warp, address_of(warp, op, operand, l), BYTES, l, use, hint);
    }
}

}  // namespace vgpu
