// Where a pixel's channels go. `within` is the pixel of its frame, `byte` the first byte of the channels in a pixel.
#pragma once

#include "convolution.cuh"

// Four float32 from channel `first` on; a buffer whose pixels end before that takes those that it has.
template <class Store>
ORIND_DEVICE void store_reals(const Convolution& p, int frame, int within, int first, const uint32* from) {
    if (first + 4 <= p.stored && ((p.y_pitch | reinterpret_cast<uint64>(p.y)) & 15) == 0) {
        Store::template words<16>(p, frame, within, first * 4, from);
        return;
    }
    #pragma unroll
    for (int e = 0; e < 4; ++e)
        if (first + e < p.stored) Store::template words<4>(p, frame, within, (first + e) * 4, from + e);
}

// Into a slice of an NHWC buffer.
struct StoreOnce {
    template <int BYTES>
    static __device__ __forceinline__ void words(const Convolution& p, int frame, int within, int byte, const uint32* from) {
        char* to = p.y + static_cast<long long>(frame) * p.y_frame + within * p.y_pitch + byte;
        #pragma unroll
        for (int b = 0; b < BYTES; b += 16) store_words<(BYTES < 16 ? BYTES : 16)>(to + b, from + b / 4);
    }
};

// Nearest upsampling by two: each pixel four times into an image of twice the height and width.
struct StoreFourTimes {
    template <int BYTES>
    static __device__ __forceinline__ void words(const Convolution& p, int frame, int within, int byte, const uint32* from) {
        const int h = within / p.out_width, w = within - h * p.out_width;
        char* to = p.y + static_cast<long long>(frame) * p.y_frame + (h * 2 * p.out_width * 2 + w * 2) * p.y_pitch + byte;
        #pragma unroll
        for (int corner = 0; corner < 4; ++corner) {
            char* there = to + ((corner >> 1) * p.out_width * 2 + (corner & 1)) * p.y_pitch;
            #pragma unroll
            for (int b = 0; b < BYTES; b += 16) store_words<(BYTES < 16 ? BYTES : 16)>(there + b, from + b / 4);
        }
    }
};
