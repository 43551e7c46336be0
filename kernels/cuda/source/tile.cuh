// How a block's tile of the matrix product lies in threads and in shared memory.
//
// A block makes BM output pixels by BN output channels, a warp WM by WN, in steps of BK bytes of K. Shared memory holds
// STAGES of both operands, rows of BK bytes in chunks of 16: chunk c of row r lies at place c ^ swizzle(r), so that the 16
// bytes that eight threads write or eight rows give at once fall into different banks.
//
// mma leaves columns 2 t and 2 t + 1 of every 8 to thread t of a quad. The rows of the weights are permuted on the host
// (convolution.py, `channel_order`) so that a thread's OWNED output channels come in runs of RUN, each stored in one go, and
// the same run of the quad's four threads side by side: what they store at once fills its sectors.
#pragma once

#include "ptx.cuh"

template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_, int RUN_>
struct Tile {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, STAGES = STAGES_, RUN = RUN_;
    static constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN, THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int CHUNKS = BK / 16;                    // of a row
    static constexpr int ROWS = THREADS / CHUNKS;             // filled at once by all threads
    static constexpr int A_ROUNDS = BM / ROWS, B_ROUNDS = (BN + ROWS - 1) / ROWS;
    static constexpr int M_TILES = WM / 16, N_TILES = WN / 8; // of mma, in a warp
    static constexpr int OWNED = WN / 4;                      // output channels of a thread
    static constexpr int STAGE_BYTES = (BM + BN) * BK;        // of shared memory, STAGES of them
    static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0, "whole warps, pairs of mma columns");
    static_assert(BK == 32 || BK == 64 || BK == 128, "the swizzle");
    static_assert(OWNED % RUN == 0 && RUN % 4 == 0, "whole runs, of four channels at least");
    static_assert(THREADS % CHUNKS == 0 && BM % ROWS == 0 && STAGES >= 2, "whole rounds");

    // Where number `c` of a thread's channels lies behind its first one.
    static __device__ __forceinline__ int channel(int c) { return c / RUN * RUN * 4 + c % RUN; }

    // 128 / BK rows share a line of all 32 banks.
    static __device__ __forceinline__ int swizzle(int row) { return row / (128 / BK) % CHUNKS; }
    static __device__ __forceinline__ uint32 place(int row, int chunk) {
        return static_cast<uint32>(row * BK + ((chunk ^ swizzle(row)) << 4));
    }
};
