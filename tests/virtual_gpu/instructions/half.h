// float16 in software: exact conversions, one rounding (to nearest even) an operation. gcc 12 has no _Float16 in C++.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "rounding.h"

namespace vgpu {

constexpr uint16_t HALF_NAN = 0x7fff;

inline uint32_t float_bits(float a) { uint32_t b; std::memcpy(&b, &a, 4); return b; }
inline float bits_float(uint32_t a) { float b; std::memcpy(&b, &a, 4); return b; }
inline uint64_t double_bits(double a) { uint64_t b; std::memcpy(&b, &a, 8); return b; }
inline double bits_double(uint64_t a) { double b; std::memcpy(&b, &a, 8); return b; }

// Without branches, so that the compiler vectorises loops over it.
inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    const uint32_t small = float_bits(static_cast<float>(static_cast<int32_t>(fraction)) * 0x1p-24f);  // below the least normal
    const uint32_t other = (exponent + 112 + ((exponent + 1) >> 5) * 112) << 23 | fraction << 13;  // 31: infinity and NaN, 255
    const uint32_t is_small = static_cast<uint32_t>(static_cast<int32_t>(exponent - 1) >> 31);
    return bits_float(sign | (small & is_small) | (other & ~is_small));
}

// Rounds once from double. Overflow becomes infinity, or the largest value where the rounding says so.
inline uint16_t double_to_half(double value, Rounding rounding = Rounding::nearest) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return HALF_NAN;
    const double magnitude = std::fabs(value);
    const bool away = (rounding == Rounding::up && !sign) || (rounding == Rounding::down && sign);
    if (std::isinf(value)) return sign | 0x7c00;
    int exponent;
    std::frexp(magnitude, &exponent);
    const double unit = std::ldexp(1.0, (exponent - 11 < -24) ? -24 : exponent - 11);
    const double scaled = magnitude / unit;
    double whole = std::floor(scaled);
    const double rest = scaled - whole;
    if (rounding == Rounding::nearest) whole += rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) == 1.0);
    else whole += away && rest > 0;
    const double rounded = whole * unit;
    if (rounded > 65504)
        return sign | (rounding == Rounding::nearest || away ? 0x7c00 : 0x7bff);
    if (rounded == 0) return sign;
    std::frexp(rounded, &exponent);
    if (exponent < -13) return sign | static_cast<uint16_t>(rounded * 0x1p24);
    return sign | static_cast<uint16_t>(((exponent + 14) << 10) | (static_cast<int>(std::ldexp(rounded, 11 - exponent)) & 0x3ff));
}

inline uint16_t float_to_half(float value) {
    const uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return HALF_NAN;
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
    if (magnitude < 0x38800000) {  // below the least normal: the unit is 2^-24
        const float scaled = bits_float(magnitude) * 0x1p24f;  // exact; nearbyint rounds half to even
        return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyintf(scaled)));
    }
    const uint32_t odd = magnitude >> 13 & 1;
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

// a * b + c, one rounding: the exact sum, rounded to odd in double, loses nothing that the last rounding needs.
inline uint16_t half_fma(uint16_t a, uint16_t b, uint16_t c) {
    const double product = static_cast<double>(half_to_float(a)) * half_to_float(b), addend = half_to_float(c);
    double sum = product + addend;
    if (!std::isfinite(sum)) return double_to_half(sum);
    const double part = sum - product, error = (product - (sum - part)) + (addend - part);
    if (error != 0 && (double_bits(sum) & 1) == 0)
        sum = bits_double(double_bits(sum) + (((error > 0) == (sum > 0)) ? 1 : -1ull));
    return double_to_half(sum);
}

}  // namespace vgpu
