// cp.async: PTX ISA 8.5, section 9.7.9.25. Copies are written at issue or when they are waited for (Options); either way
// nobody may touch the bytes in between.
#include <algorithm>
#include <cstring>

#include "access.h"
#include "lanes.h"

namespace vgpu {

namespace {

void write(Warp& warp, const AsyncCopy& copy) {
    uint8_t* to = warp.block->shared.at(copy.to);
    std::memcpy(to, reinterpret_cast<const void*>(copy.from), copy.valid);
    std::memset(to + copy.valid, 0, copy.bytes - copy.valid);
}

void count(Warp& warp, const Op& op, uint32_t mask, unsigned bytes, bool sized) {
    Counters& counters = warp.block->counters;
    uint64_t from[LANES], to[LANES];
    int n = 0, m = 0;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        to[m++] = address_of(warp, op, 0, l);
        if (!sized || lanes<uint32_t>(warp, op.at[2])[l] != 0) from[n++] = address_of(warp, op, 1, l, 1);
    }
    ++counters.async_copy_requests;
    counters.async_copy_sectors += sectors(from, n, bytes);
    const uint64_t waves = wavefronts(to, m, bytes), least = (static_cast<uint64_t>(m) * bytes + 127) / 128;
    ++counters.shared_store_requests;
    counters.shared_store_wavefronts += waves;
    counters.shared_store_least += std::min(waves, least);
}

// SIZED: the last operand says how many bytes come from the source; zeros follow.
template <bool SIZED, bool WHOLE>
void copy(Warp& warp, const Op& op, uint32_t mask) {
    const auto bytes = static_cast<uint32_t>(op.literal[0]);
    if (!(bytes == 16 || (!WHOLE && (bytes == 4 || bytes == 8))))
        throw Trap{ERROR_LAUNCH_FAILED, "cp.async of " + std::to_string(bytes) + " bytes"};
    if (warp.block->grid.options.count) count(warp, op, mask, bytes, SIZED);
    Hint hint;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        AsyncCopy made;
        made.bytes = bytes;
        made.valid = SIZED ? std::min(bytes, lanes<uint32_t>(warp, op.at[2])[l]) : bytes;
        made.from = address_of(warp, op, 1, l, 1);
        if (made.valid == bytes) {
            global_bytes(warp, made.from, bytes, l, Use::read, hint);
        } else {
            if (made.from % bytes) misaligned(made.from, bytes, l);
            for (uint32_t i = 0; i < made.valid; ++i) global_bytes(warp, made.from + i, 1, l, Use::read, hint);
        }
        const uint64_t to = address_of(warp, op, 0, l);
        if (to % bytes) misaligned(to, bytes, l);
        SharedMemory& shared = warp.block->shared;
        if (!shared.holds(to, bytes)) outside_shared(warp, to, l);
        made.to = static_cast<uint32_t>(to);
        shared.touch(made.to, bytes, warp.index, Use::begin_async);
        if (!warp.block->grid.options.deferred_copies) write(warp, made);
        warp.open.push_back(made);
    }
}

void commit(Warp& warp, const Op&, uint32_t) {
    warp.groups.push_back(std::move(warp.open));
    warp.open.clear();
}

void complete(Warp& warp, size_t keep) {
    while (warp.groups.size() > keep) {
        for (const AsyncCopy& copy : warp.groups.front()) {
            if (warp.block->grid.options.deferred_copies) write(warp, copy);
            warp.block->shared.touch(copy.to, copy.bytes, warp.index, Use::end_async);
        }
        warp.groups.erase(warp.groups.begin());
    }
}

void wait_group(Warp& warp, const Op& op, uint32_t) { complete(warp, static_cast<size_t>(op.literal[0])); }

void wait_all(Warp& warp, const Op& op, uint32_t mask) {
    commit(warp, op, mask);
    complete(warp, 0);
}

}  // namespace

void add_async_copies(Forms& forms) {
    for (const std::string prefetch : {"", ".L2::128B"}) {
        forms.add("cp.async.ca.shared.global" + prefetch, "@@i", &copy<false, false>);
        forms.add("cp.async.ca.shared.global" + prefetch, "@@iw", &copy<true, false>);
        forms.add("cp.async.cg.shared.global" + prefetch, "@@i", &copy<false, true>);
        forms.add("cp.async.cg.shared.global" + prefetch, "@@iw", &copy<true, true>);
    }
    forms.add("cp.async.commit_group", "", &commit);
    forms.add("cp.async.wait_group", "i", &wait_group);
    forms.add("cp.async.wait_all", "", &wait_all);
}

}  // namespace vgpu
