// One INT8 convolution kernel; which one, the build says (build.py):
//   ORIND_NAME, ORIND_BM, ORIND_BN, ORIND_BK, ORIND_WM, ORIND_WN, ORIND_STAGES, ORIND_RUN (tile.cuh),
//   ORIND_UNSIGNED, ORIND_ENDING (epilogue_i8.cuh), ORIND_WINDOWED, ORIND_SPLIT, ORIND_TWICE (upsample in the store)
#include "epilogue_i8.cuh"

using T = Tile<ORIND_BM, ORIND_BN, ORIND_BK, ORIND_WM, ORIND_WN, ORIND_STAGES, ORIND_RUN>;

using Type = Choose<ORIND_UNSIGNED, UnsignedBytes, SignedBytes>::Type;
using Store = Choose<ORIND_TWICE, StoreFourTimes, StoreOnce>::Type;

extern "C" __global__ void __launch_bounds__(T::THREADS, 1) ORIND_NAME(const Convolution p) {
    extern __shared__ __align__(128) char shared[];
    constexpr bool TABLED = ORIND_ENDING == TABLE || ORIND_ENDING == TABLE_RESIDUAL;
    __shared__ __align__(16) int8 table[TABLED ? 1024 : 16];
    if constexpr (TABLED) {
        for (int i = threadIdx.x; i < 64; i += T::THREADS) reinterpret_cast<int4*>(table)[i] = __ldg(reinterpret_cast<const int4*>(p.table) + i);
        __syncthreads();  // the main loop's barriers would do, but a part of split-K may have no step
    }
    convolve<Type, T, ORIND_WINDOWED, ORIND_SPLIT>(p, shared, [&](Sums<Type, T>& sums, int i, int half, int pixel, int group, int channel) {
        finish_i8<Type, T, ORIND_ENDING, Store>(p, table, sums, i, half, pixel, group, channel);
    });
}
