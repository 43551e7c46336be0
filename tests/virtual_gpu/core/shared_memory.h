// The shared memory of a block: its bytes, and a shadow that checks every access. Callers: the instructions that touch
// shared memory; block.cpp at a barrier.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "shadow.h"

namespace vgpu {

struct Options;

class SharedMemory {
public:
    // `own` bytes of the kernel, `added` bytes of the launch from `added_at` on; what lies between belongs to nobody.
    // Contents are poison and count as never written.
    void prepare(uint32_t own, uint32_t added_at, uint32_t added, const Options& options);
    uint8_t* at(uint32_t address) { return bytes_.data() + address; }
    uint32_t size() const { return size_; }
    bool holds(uint64_t address, uint64_t bytes) const {
        return within(address, bytes, size_) && (address >= gap_end_ || address + bytes <= gap_begin_);
    }
    // One aligned access that lies inside. Throws Trap for a race or a read of what was never written.
    void touch(uint32_t address, uint32_t bytes, uint32_t warp, Use use) {
        if (checked_) shadow_.check(address, bytes, warp, use);
    }
    void all_met() { shadow_.all_met(); }
    void some_met(uint32_t warps) { shadow_.some_met(warps); }

private:
    std::vector<uint8_t> bytes_;
    Shadow shadow_;
    uint32_t size_ = 0, gap_begin_ = 0, gap_end_ = 0;
    bool checked_ = false;
};

}  // namespace vgpu
