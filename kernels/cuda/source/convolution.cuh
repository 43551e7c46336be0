// Convolution as an implicit matrix product on tensor cores: M output pixels, N output channels, K the window's bytes.
//
// Launched by convolution.py, which builds what is geometric. Activations are NHWC, their channels in chunks of 16 bytes;
// `gather` names the chunks of a window in the order of K, so that kernel size, dilation, channel slices and pads are
// unknown to the main loop. Nothing is written here but shared memory and, for split-K, `partial`.
//   x      pixel (n, h, w) at n * x_frame + (h * width + w) * x_pitch bytes; 16-byte aligned; group g at + g * x_group
//   weight [groups][channels padded to BN, permuted][K padded to BK] bytes, K contiguous
//   gather [K padded / 16] {byte offset from the window's first pixel, row << 16 | column of the window}
#pragma once

#include "tile.cuh"

struct Convolution {
    const char* x;
    const char* weight;
    const int2* gather;
    char* y;
    const void* bias;         // [groups][channels padded to BN] int32, or float32 for float16
    const float* multiplier;  // [groups][channels padded to BN]; 0: a channel that is a pad and stays 0. float16: else 1
    const char* residual;     // like y, or null
    const int8* table;        // 1,024 entries, or null
    void* partial;            // split-K: [splits][tiles of the launch][BM * BN] sums
    int* arrived;             // split-K: one counter a tile, 0 before and after the launch
    int* overflow;            // float16: [frames], 1 where a result does not fit; int8: unused
    int height, width, out_height, out_width, pixels;        // pixels: frames * out_height * out_width
    int stride_h, stride_w, pad_top, pad_left;
    int x_frame, x_pitch, x_group;
    int y_frame, y_pitch, residual_frame, residual_pitch;     // bytes
    int channels;             // of a group, a multiple of what a thread stores in one go
    int steps;                // of BK bytes in K
    int stored;               // float32 end: channels that a pixel of y has, of all groups; fewer than made: the rest is pads
    float residual_multiplier, low, high, alpha, beta;
};

// The sums of this thread: rows g and g + 8 of each mma tile, OWNED channels; `at(i, half, c)` by tile, row half, number of
// the channel.
template <class Type, class T>
struct Sums {
    typename Type::Sum value[T::M_TILES][T::N_TILES][4];

    __device__ __forceinline__ typename Type::Sum& at(int i, int half, int channel) {
        return value[i][channel >> 1][half * 2 + (channel & 1)];
    }
};

// WINDOWED: the window may reach beyond the image; without it every chunk exists (1x1, no pads).
template <class Type, class T, bool WINDOWED>
__device__ __forceinline__ void main_loop(const Convolution& p, char* shared, int group, int first, int last,
                                          Sums<Type, T>& sums) {
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int warp_m = warp % T::WARPS_M * T::WM, warp_n = warp / T::WARPS_M * T::WN;
    const int block_m = blockIdx.x * T::BM, block_n = blockIdx.y % ((p.channels + T::BN - 1) / T::BN) * T::BN;
    const uint32 base = shared_address(shared);

    // This thread fills chunk column `chunk` of rows row + i * ROWS: for activations, of these pixels.
    const int chunk = thread % T::CHUNKS, row = thread / T::CHUNKS;
    const char* pixel[T::A_ROUNDS];
    int corner[T::A_ROUNDS];  // row << 16 | column of the window's first pixel, 0x4000 added to each
    #pragma unroll
    for (int i = 0; i < T::A_ROUNDS; ++i) {
        const int m = block_m + row + i * T::ROWS, known = m < p.pixels ? m : 0;
        const int area = p.out_height * p.out_width, frame = known / area, within = known - frame * area;
        const int h = within / p.out_width * p.stride_h - p.pad_top, w = within % p.out_width * p.stride_w - p.pad_left;
        pixel[i] = p.x + static_cast<long long>(frame) * p.x_frame + group * p.x_group + (h * p.width + w) * p.x_pitch;
        corner[i] = m < p.pixels ? (h + 0x4000) << 16 | (w + 0x4000) : -1;
    }
    const int pitch = p.steps * T::BK;
    const int padded = (p.channels + T::BN - 1) / T::BN * T::BN;
    const char* weight = p.weight + static_cast<long long>(group * padded + block_n + row) * pitch + chunk * 16;

    const auto fill = [&](int step, int stage) {
        const uint32 a = base + stage * T::STAGE_BYTES, b = a + T::BM * T::BK;
        const int2 source = __ldg(p.gather + step * T::CHUNKS + chunk);
        #pragma unroll
        for (int i = 0; i < T::A_ROUNDS; ++i) {
            bool inside = corner[i] >= 0;
            if constexpr (WINDOWED) {
                const int h = (corner[i] >> 16) - 0x4000 + (source.y >> 16), w = (corner[i] & 0xffff) - 0x4000 + (source.y & 0xffff);
                inside = inside && static_cast<uint32>(h) < static_cast<uint32>(p.height) &&
                         static_cast<uint32>(w) < static_cast<uint32>(p.width);
            }
            copy_async_near(a + T::place(row + i * T::ROWS, chunk), inside ? pixel[i] + source.x : p.x, inside);
        }
        #pragma unroll
        for (int i = 0; i < T::B_ROUNDS; ++i)
            if (T::BN % T::ROWS == 0 || row + i * T::ROWS < T::BN)
                copy_async_far(b + T::place(row + i * T::ROWS, chunk), weight + static_cast<long long>(i) * T::ROWS * pitch + step * T::BK);
    };

    #pragma unroll
    for (int i = 0; i < T::M_TILES; ++i)
        #pragma unroll
        for (int j = 0; j < T::N_TILES; ++j)
            sums.value[i][j][0] = sums.value[i][j][1] = sums.value[i][j][2] = sums.value[i][j][3] = 0;

    // A group is committed at every step, empty or not, so that the count to wait for stays the same.
    #pragma unroll
    for (int s = 0; s < T::STAGES - 1; ++s) {
        if (first + s < last) fill(first + s, s);
        commit_copies();
    }
    // ldmatrix: lanes give the rows of 16 x 32 bytes of A, of 16 x 32 bytes (two mma columns) of B
    const int a_row = warp_m + (lane & 15), a_half = lane >> 4;
    const int b_row = warp_n + (lane & 7) + (lane >> 4) * 8, b_half = lane >> 3 & 1;
    int reading = 0, writing = T::STAGES - 1;
    for (int step = first; step < last; ++step) {
        wait_copies<T::STAGES - 2>();
        __syncthreads();  // the stage is there for all, and nobody reads the one that is filled next
        if (step + T::STAGES - 1 < last) fill(step + T::STAGES - 1, writing);
        commit_copies();
        const uint32 a = base + reading * T::STAGE_BYTES, b = a + T::BM * T::BK;
        #pragma unroll
        for (int k = 0; k < T::BK / 32; ++k) {
            uint32 left[T::M_TILES][4], right[T::N_TILES][2];
            #pragma unroll
            for (int i = 0; i < T::M_TILES; ++i) load_matrices(left[i], a + T::place(a_row + i * 16, k * 2 + a_half));
            #pragma unroll
            for (int j = 0; j < T::N_TILES; j += 2) {
                uint32 two[4];
                load_matrices(two, b + T::place(b_row + j * 8, k * 2 + b_half));
                right[j][0] = two[0], right[j][1] = two[1], right[j + 1][0] = two[2], right[j + 1][1] = two[3];
            }
            #pragma unroll
            for (int i = 0; i < T::M_TILES; ++i)
                #pragma unroll
                for (int j = 0; j < T::N_TILES; ++j) Type::multiply(sums.value[i][j], left[i], right[j]);
        }
        reading = reading + 1 == T::STAGES ? 0 : reading + 1;
        writing = writing + 1 == T::STAGES ? 0 : writing + 1;
    }
    wait_copies<0>();
}

// Split-K: every block leaves its sums, the last of a tile adds all of them, in the order of K: the same bits every time,
// for float too. Returns whether this block is the last.
template <class Type, class T>
__device__ __forceinline__ bool combine(const Convolution& p, Sums<Type, T>& sums) {
    using Sum = typename Type::Sum;
    __shared__ int last;
    constexpr int EACH = T::M_TILES * T::N_TILES * 4;
    const int tile = blockIdx.y * gridDim.x + blockIdx.x, tiles = gridDim.x * gridDim.y;
    Sum* const all = static_cast<Sum*>(p.partial) + static_cast<long long>(tile) * T::BM * T::BN + threadIdx.x;
    const long long apart = static_cast<long long>(tiles) * T::BM * T::BN;
    Sum* const flat = &sums.value[0][0][0];
    #pragma unroll
    for (int e = 0; e < EACH; ++e) all[blockIdx.z * apart + e * T::THREADS] = flat[e];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(p.arrived + tile, 1) == static_cast<int>(gridDim.z) - 1;
        if (last) p.arrived[tile] = 0;
    }
    __syncthreads();
    if (!last) return false;
    __threadfence();
    #pragma unroll
    for (int e = 0; e < EACH; ++e) flat[e] = 0;
    for (int z = 0; z < static_cast<int>(gridDim.z); ++z)
        #pragma unroll
        for (int e = 0; e < EACH; ++e) flat[e] += __ldcg(all + z * apart + e * T::THREADS);
    return true;
}

// Whole kernel but for what becomes of a row of sums: `finish(sums, i, half, pixel, group, channel)` for each one that
// exists; `channel` is the first of the thread's, and of its runs some may lie past p.channels.
template <class Type, class T, bool WINDOWED, bool SPLIT, class Finish>
__device__ __forceinline__ void convolve(const Convolution& p, char* shared, Finish finish) {
    const int blocks = (p.channels + T::BN - 1) / T::BN, group = blockIdx.y / blocks;
    int first = 0, last = p.steps;
    if constexpr (SPLIT) {
        const int each = (p.steps + static_cast<int>(gridDim.z) - 1) / static_cast<int>(gridDim.z);
        first = blockIdx.z * each;
        last = min(first + each, p.steps);
    }
    Sums<Type, T> sums;
    main_loop<Type, T, WINDOWED>(p, shared, group, first, last, sums);
    if constexpr (SPLIT)
        if (!combine<Type, T>(p, sums)) return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int channel = blockIdx.y % blocks * T::BN + warp / T::WARPS_M * T::WN + (lane & 3) * T::RUN;
    if (channel >= p.channels) return;
    const int row = blockIdx.x * T::BM + warp % T::WARPS_M * T::WM + (lane >> 2);
    #pragma unroll
    for (int i = 0; i < T::M_TILES; ++i)
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int pixel = row + i * 16 + half * 8;
            if (pixel < p.pixels) finish(sums, i, half, pixel, group, channel);
        }
}
