// What block.cpp and the instructions share: the random numbers of a schedule, and barriers that reduce.
#pragma once

#include "warp.h"

namespace vgpu {

// splitmix64: the same turns for the same seed on every machine.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }

private:
    uint64_t state_;
};

// bar.red: `held` threads of `alive` had the predicate. Writes the destination of warp.reduction. In control.cpp.
void write_reduction(Warp& warp, uint32_t held, uint32_t alive);

void run_block(Block& block, uint64_t index, Random& random);

}  // namespace vgpu
