// What one warp of a block did before what another does now, since the last barrier of the whole block: barriers of some
// of the warps order those that met, and nobody else. Caller: Shadow.
//
// A warp's segment counts the barriers of some warps that it has passed. known_[w][v] is how many segments of warp v are
// before everything that warp w does from now on (a vector clock).
#pragma once

#include <algorithm>
#include <cstdint>

#include "program.h"

namespace vgpu {

constexpr uint32_t WARPS = 32;               // of a block of 1,024 threads

class WarpOrder {
public:
    void restart() {
        if (!parted_) return;
        parted_ = false;
        std::fill_n(segment_, WARPS, 0u);
        std::fill_n(&known_[0][0], WARPS * WARPS, 0u);
    }
    void meet(uint32_t warps) {
        uint32_t joined[WARPS] = {};
        bool full = false;
        for (uint32_t rest = warps; rest != 0; rest &= rest - 1) {
            const int w = __builtin_ctz(rest);
            for (uint32_t v = 0; v < WARPS; ++v) joined[v] = std::max(joined[v], known_[w][v]);
            joined[w] = ++segment_[w];
            full = full || segment_[w] == UINT32_MAX;
        }
        for (uint32_t rest = warps; rest != 0; rest &= rest - 1) std::copy_n(joined, WARPS, known_[__builtin_ctz(rest)]);
        parted_ = true;
        if (full) restart();  // no number is left to tell them apart
    }
    bool parted() const { return parted_; }  // whether some warps have met since all did
    uint32_t segment(uint32_t warp) const { return segment_[warp]; }
    // Whether what `other` did in `segment` is before what `warp` does now.
    bool before(uint32_t other, uint32_t segment, uint32_t warp) const { return segment < known_[warp][other]; }

private:
    bool parted_ = false;
    uint32_t segment_[WARPS] = {}, known_[WARPS][WARPS] = {};
};

}  // namespace vgpu
