// What follows the sums of an INT8 convolution: CONTRACT.md's `plain`, `+res`, `table` and `tab+res`, and the float32 end.
//
// Written to the bit: fmul and fadd only, round half to even after the clamp. Table and multipliers are float32 and int8
// as the plan stores them.
#pragma once

#include "convolution.cuh"
#include "store.cuh"

enum Ending { PLAIN = 0, TABLE = 1, RESIDUAL = 2, TABLE_RESIDUAL = 3, REAL = 4 };

// Index of the table of 1,024: RNE(clamp(v, -512, 511)) + 512, as the low ten bits with the top one flipped.
ORIND_DEVICE uint32 table_index(float v) { return (round_bits(clamp(v, -512.0f, 511.0f)) & 0x3ff) ^ 0x200; }

// One pixel's OWNED channels, the first of them `channel` of `group`. `table` lies in shared memory.
template <class Type, class T, int ENDING, class Store>
__device__ __forceinline__ void finish_i8(const Convolution& p, const int8* table, Sums<Type, T>& sums, int i, int half, int pixel,
                                          int group, int channel) {
    static_assert(T::RUN == (ENDING == REAL ? 4 : T::OWNED), "a run is 16 bytes of float32, or all that a thread has");
    const int padded = (p.channels + T::BN - 1) / T::BN * T::BN;
    const int area = p.out_height * p.out_width, frame = pixel / area, within = pixel - frame * area;
    const int place = group * p.channels + channel;
    uint32 codes[T::OWNED / 4], other[T::OWNED / 4];
    if constexpr ((ENDING & 2) != 0)
        load_words<T::OWNED>(other, p.residual + static_cast<long long>(frame) * p.residual_frame + within * p.residual_pitch + place);
    #pragma unroll
    for (int c = 0; c < T::OWNED; c += 4) {
        const int first = channel + T::channel(c);
        if (T::RUN < T::OWNED && first >= p.channels) break;
        const int4 b = __ldg(reinterpret_cast<const int4*>(static_cast<const int*>(p.bias) + group * padded + first));
        const float4 m = __ldg(reinterpret_cast<const float4*>(p.multiplier + group * padded + first));
        float v[4] = {fmul(static_cast<float>(sums.at(i, half, c) + b.x), m.x), fmul(static_cast<float>(sums.at(i, half, c + 1) + b.y), m.y),
                      fmul(static_cast<float>(sums.at(i, half, c + 2) + b.z), m.z), fmul(static_cast<float>(sums.at(i, half, c + 3) + b.w), m.w)};
        if constexpr (ENDING == REAL) {
            const uint32 words[4] = {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3])};
            store_reals<Store>(p, frame, within, group * p.channels + first, words);
            continue;
        }
        const float gain[4] = {m.x, m.y, m.z, m.w};
        uint32 bits[4];
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            if constexpr (ENDING == TABLE) {
                bits[e] = static_cast<uint32>(table[table_index(v[e])]);
            } else {
                if constexpr ((ENDING & 1) != 0) v[e] = static_cast<float>(table[table_index(v[e])]);
                if constexpr ((ENDING & 2) != 0) v[e] = fadd(v[e], fmul(byte_to_float(other[c / 4], e), p.residual_multiplier));
                bits[e] = round_bits(clamp(v[e], p.low, p.high));
            }
            if (gain[e] == 0.0f) bits[e] = 0;
        }
        codes[c / 4] = pack_bytes(bits[0], bits[1], bits[2], bits[3]);
    }
    if constexpr (ENDING != REAL) Store::template words<T::OWNED>(p, frame, within, place, codes);
}
