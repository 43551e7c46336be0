// Element-wise functions of float bodies, in float32: toleranced, not to the bit (CONTRACT.md). Which one is the same for
// a whole launch, so the branch costs nothing that matters.
#pragma once

#include "ptx.cuh"

// The numbers are convolution.py's ACTIVATIONS.
enum Activation { NONE, SIGMOID, SILU, TANH, LEAKY_RELU, HARD_SIGMOID, HARD_SWISH, GELU, GELU_TANH, MISH, ELU, RELU };

ORIND_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Below low is low, above high is high, NaN stays: a fault must not turn into a number.
ORIND_DEVICE float bound(float v, float low, float high) { return v < low ? low : v > high ? high : v; }

ORIND_DEVICE float activate(int which, float x, float alpha, float beta) {
    switch (which) {
        case SIGMOID: return sigmoid(x);
        case SILU: return x * sigmoid(x);
        case TANH: return tanhf(x);
        case LEAKY_RELU: return x < 0 ? x * alpha : x;
        case HARD_SIGMOID: return bound(x * alpha + beta, 0, 1);
        case HARD_SWISH: return x * bound(x * (1.0f / 6) + 0.5f, 0, 1);
        case GELU: return x * 0.5f * (1.0f + erff(x * 0.70710678f));
        case GELU_TANH: return x * 0.5f * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
        case MISH: {
            const float t = expf(fminf(x, 30.0f)), u = t * (t + 2.0f);
            return x * (u / (u + 2.0f));
        }
        case ELU: return x < 0 ? alpha * expm1f(x) : x;
        case RELU: return x < 0 ? 0 : x;
        default: return x;
    }
}
