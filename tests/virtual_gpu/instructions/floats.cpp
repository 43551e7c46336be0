// float32 and float64 arithmetic: PTX ISA 8.5, sections 9.7.3. IEEE, round to nearest even, never contracted. A float32
// NaN result is 0x7fffffff. The .approx instructions are computed in double and rounded: better than the hardware, whose
// bits they do not have.
#include <cmath>

#include "half.h"
#include "lanes.h"

namespace vgpu {

namespace {

float canonical(float a) { return a != a ? bits_float(0x7fffffff) : a; }
double canonical(double a) { return a; }

template <bool FTZ>
float flush(float a) { return FTZ && std::fabs(a) < 0x1p-126f ? std::copysign(0.0f, a) : a; }
template <bool FTZ>
double flush(double a) { return a; }

// What the gross approximations to float64 see and give: the upper half, without subnormal numbers (PTX ISA, rcp.approx.ftz.f64).
double upper(double a) {
    const double half = bits_double(double_bits(a) & 0xffffffff00000000);
    if (half != half) return bits_double(0x7fffffff00000000);
    return std::fabs(half) < 0x1p-1022 ? std::copysign(0.0, half) : half;
}

template <class T>
T unit_clamp(T a) { return a > 0 ? (a < 1 ? a : T{1}) : T{0}; }  // NaN becomes 0

// A NaN loses against a number; -0 is less than +0.
template <class T>
T lesser(T a, T b) {
    if (a != a) return canonical(b);
    if (b != b) return a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T>
T greater(T a, T b) {
    if (a != a) return canonical(b);
    if (b != b) return a;
    return a > b || (a == b && std::signbit(b)) ? a : b;
}

template <class T, bool FTZ>
void add_arithmetic(Forms& forms, const std::string& type, const std::string& ftz) {
    for (const std::string rn : {"", ".rn"}) {
        const std::string tail = rn + ftz;
        each<T(T, T)>(forms, "add" + tail + type, [](T a, T b) { return canonical(flush<FTZ>(flush<FTZ>(a) + flush<FTZ>(b))); });
        each<T(T, T)>(forms, "sub" + tail + type, [](T a, T b) { return canonical(flush<FTZ>(flush<FTZ>(a) - flush<FTZ>(b))); });
        each<T(T, T)>(forms, "mul" + tail + type, [](T a, T b) { return canonical(flush<FTZ>(flush<FTZ>(a) * flush<FTZ>(b))); });
    }
    each<T(T, T, T)>(forms, "fma.rn" + ftz + type, [](T a, T b, T c) {
        return canonical(flush<FTZ>(std::fma(flush<FTZ>(a), flush<FTZ>(b), flush<FTZ>(c))));
    });
    each<T(T, T)>(forms, "min" + ftz + type, [](T a, T b) { return flush<FTZ>(lesser<T>(a, b)); });
    each<T(T, T)>(forms, "max" + ftz + type, [](T a, T b) { return flush<FTZ>(greater<T>(a, b)); });
    each<T(T)>(forms, "abs" + ftz + type, [](T a) { return flush<FTZ>(std::fabs(a)); });
    each<T(T)>(forms, "neg" + ftz + type, [](T a) { return flush<FTZ>(-a); });
    each<T(T, T)>(forms, "div.rn" + ftz + type, [](T a, T b) { return canonical(flush<FTZ>(flush<FTZ>(a) / flush<FTZ>(b))); });
    each<T(T)>(forms, "rcp.rn" + ftz + type, [](T a) { return canonical(flush<FTZ>(T{1} / flush<FTZ>(a))); });
    each<T(T)>(forms, "sqrt.rn" + ftz + type, [](T a) { return canonical(flush<FTZ>(std::sqrt(flush<FTZ>(a)))); });
}

// .rz, .rm and .rp: the exact result rounded in that direction.
template <Rounding ROUND, bool FTZ>
void add_directed(Forms& forms, const std::string& tail) {
    each<float(float, float)>(forms, "add" + tail, [](float a, float b) { return canonical(flush<FTZ>(rounded_sum<ROUND>(flush<FTZ>(a), flush<FTZ>(b)))); });
    each<float(float, float)>(forms, "sub" + tail, [](float a, float b) { return canonical(flush<FTZ>(rounded_sum<ROUND>(flush<FTZ>(a), -flush<FTZ>(b)))); });
    each<float(float, float)>(forms, "mul" + tail, [](float a, float b) { return canonical(flush<FTZ>(rounded<ROUND>(static_cast<double>(flush<FTZ>(a)) * flush<FTZ>(b)))); });
    each<float(float, float, float)>(forms, "fma" + tail, [](float a, float b, float c) {
        return canonical(flush<FTZ>(rounded_sum<ROUND>(static_cast<double>(flush<FTZ>(a)) * flush<FTZ>(b), flush<FTZ>(c))));
    });
}

template <bool FTZ>
void add_single(Forms& forms, const std::string& ftz) {
    for (const std::string rn : {"", ".rn"}) {
        const std::string tail = rn + ftz + ".sat.f32";
        each<float(float, float)>(forms, "add" + tail, [](float a, float b) { return unit_clamp(flush<FTZ>(flush<FTZ>(a) + flush<FTZ>(b))); });
        each<float(float, float)>(forms, "sub" + tail, [](float a, float b) { return unit_clamp(flush<FTZ>(flush<FTZ>(a) - flush<FTZ>(b))); });
        each<float(float, float)>(forms, "mul" + tail, [](float a, float b) { return unit_clamp(flush<FTZ>(flush<FTZ>(a) * flush<FTZ>(b))); });
    }
    each<float(float, float, float)>(forms, "fma.rn" + ftz + ".sat.f32", [](float a, float b, float c) {
        return unit_clamp(flush<FTZ>(std::fma(flush<FTZ>(a), flush<FTZ>(b), flush<FTZ>(c))));
    });
    each<float(float, float)>(forms, "min" + ftz + ".NaN.f32", [](float a, float b) { return a != a || b != b ? bits_float(0x7fffffff) : flush<FTZ>(lesser<float>(a, b)); });
    each<float(float, float)>(forms, "max" + ftz + ".NaN.f32", [](float a, float b) { return a != a || b != b ? bits_float(0x7fffffff) : flush<FTZ>(greater<float>(a, b)); });
    each<float(float, float)>(forms, "div.full" + ftz + ".f32", [](float a, float b) { return canonical(flush<FTZ>(flush<FTZ>(a) / flush<FTZ>(b))); });
    // a times 1 / b, and that is 0 where |b| > 2^126
    each<float(float, float)>(forms, "div.approx" + ftz + ".f32", [](float a, float b) {
        const bool large = std::fabs(b) > 0x1p126f && std::isfinite(b);
        return canonical(flush<FTZ>(large ? flush<FTZ>(a) * std::copysign(0.0f, b) : flush<FTZ>(a) / flush<FTZ>(b)));
    });
    const auto approximate = [&](const std::string& name, auto function) {
        each<float(float)>(forms, name + ".approx" + ftz + ".f32", function);
    };
    approximate("rcp", [](float a) { return canonical(flush<FTZ>(static_cast<float>(1.0 / static_cast<double>(flush<FTZ>(a))))); });
    approximate("sqrt", [](float a) { return canonical(flush<FTZ>(std::sqrt(flush<FTZ>(a)))); });
    approximate("rsqrt", [](float a) { return canonical(flush<FTZ>(static_cast<float>(1.0 / std::sqrt(static_cast<double>(flush<FTZ>(a)))))); });
    approximate("ex2", [](float a) { return canonical(flush<FTZ>(static_cast<float>(std::exp2(static_cast<double>(flush<FTZ>(a)))))); });
    approximate("lg2", [](float a) { return canonical(flush<FTZ>(static_cast<float>(std::log2(static_cast<double>(flush<FTZ>(a)))))); });
    approximate("sin", [](float a) { return canonical(flush<FTZ>(static_cast<float>(std::sin(static_cast<double>(flush<FTZ>(a)))))); });
    approximate("cos", [](float a) { return canonical(flush<FTZ>(static_cast<float>(std::cos(static_cast<double>(flush<FTZ>(a)))))); });
}

}  // namespace

void add_floats(Forms& forms) {
    add_arithmetic<float, false>(forms, ".f32", "");
    add_arithmetic<float, true>(forms, ".f32", ".ftz");
    add_arithmetic<double, false>(forms, ".f64", "");
    add_directed<Rounding::zero, false>(forms, ".rz.f32");
    add_directed<Rounding::down, false>(forms, ".rm.f32");
    add_directed<Rounding::up, false>(forms, ".rp.f32");
    add_directed<Rounding::zero, true>(forms, ".rz.ftz.f32");
    add_directed<Rounding::down, true>(forms, ".rm.ftz.f32");
    add_directed<Rounding::up, true>(forms, ".rp.ftz.f32");
    add_single<false>(forms, "");
    add_single<true>(forms, ".ftz");
    each<float(float)>(forms, "tanh.approx.f32", [](float a) { return canonical(static_cast<float>(std::tanh(static_cast<double>(a)))); });
    each<double(double)>(forms, "rcp.approx.ftz.f64", [](double a) { return upper(1.0 / upper(a)); });
    each<double(double)>(forms, "rsqrt.approx.f64", [](double a) { return 1.0 / std::sqrt(a); });
    each<double(double)>(forms, "rsqrt.approx.ftz.f64", [](double a) { return upper(1.0 / std::sqrt(upper(a))); });
}

}  // namespace vgpu
