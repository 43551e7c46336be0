// Rounding in a direction, without the processor's rounding mode (which the compiler does not see).
#pragma once

#include <cmath>
#include <cstdint>

namespace vgpu {

enum class Rounding : uint8_t { nearest, zero, down, up };

// The float next to value + error in this direction; `error` is what the double `value` lacks of the exact number.
template <Rounding ROUND>
float rounded(double value, double error = 0) {
    const float near = static_cast<float>(value);
    if (ROUND == Rounding::nearest || value != value || std::isinf(value)) return near;
    const double rest = value - static_cast<double>(near), side = rest != 0 ? rest : error;
    if (ROUND == Rounding::up || (ROUND == Rounding::zero && std::signbit(near))) return side > 0 ? std::nextafterf(near, INFINITY) : near;
    return side < 0 ? std::nextafterf(near, -INFINITY) : near;
}

// Exact sums of two floats, and of a product and a float, as a double and what it lacks (Knuth's two-sum).
template <Rounding ROUND>
float rounded_sum(double a, double b) {
    const double sum = a + b;
    if (!std::isfinite(sum)) return static_cast<float>(sum);
    if (sum == 0 && ROUND == Rounding::down && std::signbit(a) != std::signbit(b)) return -0.0f;
    const double part = sum - a;
    return rounded<ROUND>(sum, (a - (sum - part)) + (b - part));
}

}  // namespace vgpu
