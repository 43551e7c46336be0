// Element-wise functions of float bodies, in float32: toleranced, not to the bit (CONTRACT.md).
#pragma once

#include "ptx.cuh"

// The numbers are convolution.py's ACTIVATIONS.
enum Activation { NONE, SIGMOID, SILU, TANH, LEAKY_RELU, HARD_SIGMOID, HARD_SWISH, GELU, GELU_TANH, MISH, ELU, RELU };

// The fast exponential is within 2 + 1.16 |x| units in the last place of float32, the quotient within 2 (CUDA's tables); a
// unit of float16 is 2^13 of them. From x = -87 on the quotient is 0.
ORIND_DEVICE float over_one_plus_exp(float a, float x) { return __fdividef(a, 1.0f + __expf(-x)); }

template <int WHICH>
ORIND_DEVICE float activate(float x, float alpha, float beta) {
    if constexpr (WHICH == SIGMOID) return over_one_plus_exp(1.0f, x);
    else if constexpr (WHICH == SILU) return over_one_plus_exp(x, x);
    else if constexpr (WHICH == TANH) return tanhf(x);
    else if constexpr (WHICH == LEAKY_RELU) return x < 0 ? x * alpha : x;
    else if constexpr (WHICH == HARD_SIGMOID) return bound(x * alpha + beta, 0, 1);
    else if constexpr (WHICH == HARD_SWISH) return x * bound(x * (1.0f / 6) + 0.5f, 0, 1);
    else if constexpr (WHICH == GELU) return x * 0.5f * (1.0f + erff(x * 0.70710678f));
    else if constexpr (WHICH == GELU_TANH) return x * 0.5f * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    else if constexpr (WHICH == MISH) {
        const float t = __expf(fminf(x, 30.0f)), u = t * (t + 2.0f);
        return x * __fdividef(u, u + 2.0f);
    } else if constexpr (WHICH == ELU) return x < 0 ? alpha * expm1f(x) : x;
    else if constexpr (WHICH == RELU) return x < 0 ? 0 : x;
    else return x;
}
