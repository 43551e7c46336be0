// One float16 convolution kernel; ORIND_ENDING 1 leaves float32, ORIND_ACTIVATION is one of activation.cuh's. The other
// names are convolution_i8.cu's.
#include "epilogue_f16.cuh"

using T = Tile<ORIND_BM, ORIND_BN, ORIND_BK, ORIND_WM, ORIND_WN, ORIND_STAGES, ORIND_RUN>;
using Store = Choose<ORIND_TWICE, StoreFourTimes, StoreOnce>::Type;

extern "C" __global__ void __launch_bounds__(T::THREADS, 1) ORIND_NAME(const Convolution p) {
    extern __shared__ __align__(128) char shared[];
    convolve<Halves, T, ORIND_WINDOWED, ORIND_SPLIT>(p, shared, [&](Sums<Halves, T>& sums, int i, int half, int pixel, int group, int channel) {
        finish_f16<T, ORIND_ENDING == 1, ORIND_ACTIVATION, Store>(p, sums, i, half, pixel, group, channel);
    });
}
