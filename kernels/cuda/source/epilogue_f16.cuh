// What follows the sums of a float16 convolution: bias, activation, residual, bounds in float32, then one rounding.
//
// A result that float16 does not hold is an error of its frame: `overflow` of that frame becomes 1 (all writers agree).
#pragma once

#include "activation.cuh"
#include "convolution.cuh"
#include "store.cuh"

constexpr float FIRST_TOO_LARGE = 65520.0f;  // halfway between the largest float16 and the next power of two

// One pixel's OWNED channels, the first of them `channel` of `group`. REAL_END: float32 leaves, the end of the body.
template <class T, bool REAL_END, int ACTIVATION, class Store>
__device__ __forceinline__ void finish_f16(const Convolution& p, Sums<Halves, T>& sums, int i, int half, int pixel, int group, int channel) {
    static_assert(T::RUN == (REAL_END ? 4 : 8), "a run is 16 bytes of what leaves");
    const int padded = (p.channels + T::BN - 1) / T::BN * T::BN;
    const int area = p.out_height * p.out_width, frame = pixel / area, within = pixel - frame * area;
    const char* residual = p.residual + static_cast<long long>(frame) * p.residual_frame + within * p.residual_pitch;
    bool fits = true;
    #pragma unroll
    for (int c = 0; c < T::OWNED; c += T::RUN) {
        const int first = channel + T::channel(c), place = group * p.channels + first;
        if (T::RUN < T::OWNED && first >= p.channels) break;
        const float* bias = static_cast<const float*>(p.bias) + group * padded + first;
        const float* gain = p.multiplier + group * padded + first;
        uint32 words[T::RUN];
        float v[T::RUN];
        #pragma unroll
        for (int e = 0; e < T::RUN; e += 4) {
            const float4 b = __ldg(reinterpret_cast<const float4*>(bias + e));
            v[e] = b.x, v[e + 1] = b.y, v[e + 2] = b.z, v[e + 3] = b.w;
        }
        #pragma unroll
        for (int e = 0; e < T::RUN; ++e) v[e] = activate<ACTIVATION>(sums.at(i, half, c + e) + v[e], p.alpha, p.beta);
        if (p.residual != nullptr) {
            uint32 other[T::RUN / 2];
            load_words<T::RUN * 2>(other, residual + place * 2);
            #pragma unroll
            for (int e = 0; e < T::RUN; ++e) v[e] += half_to_float(other[e / 2], e & 1);
        }
        #pragma unroll
        for (int e = 0; e < T::RUN; e += 4) {
            const float4 kept = __ldg(reinterpret_cast<const float4*>(gain + e));  // 1, or 0 for a pad
            const float factor[4] = {kept.x, kept.y, kept.z, kept.w};
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float y = fmul(bound(v[e + k], p.low, p.high), factor[k]);
                fits &= fabsf(y) < FIRST_TOO_LARGE;
                words[e + k] = __float_as_uint(y);
            }
        }
        if constexpr (REAL_END) {
            store_reals<Store>(p, frame, within, place, words);
        } else {
            #pragma unroll
            for (int e = 0; e < T::RUN / 2; ++e)
                words[e] = pack_halves(__uint_as_float(words[2 * e]), __uint_as_float(words[2 * e + 1]));
            Store::template words<T::RUN * 2>(p, frame, within, place * 2, words);
        }
    }
    if (!REAL_END && !fits) p.overflow[frame] = 1;
}
