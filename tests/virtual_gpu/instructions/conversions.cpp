// cvt: PTX ISA 8.5, section 9.7.9.21. Integers are cut or, with .sat, clamped; a real becomes the nearest integer in the
// given direction, clamped to its range.
//
// NaN becomes 0, or, where the source is .f64 or the result has 64 bits, the highest bit alone: so says ISA 9.0, and CUDA
// 12.6's cuda_fp16.hpp on the host of __half2ll_rz; 8.5 said 0 of all. No GPU has been asked yet.
#include <cmath>
#include <limits>
#include <utility>

#include "half.h"
#include "lanes.h"

namespace vgpu {

namespace {

struct Half {
    uint16_t bits;
};

template <class T>
constexpr bool REAL = std::is_floating_point_v<T> || std::is_same_v<T, Half>;

template <class T, class R>
T read(R raw) {
    if constexpr (std::is_same_v<T, Half>) return Half{static_cast<uint16_t>(raw)};
    else if constexpr (std::is_same_v<T, float>) return bits_float(static_cast<uint32_t>(raw));
    else if constexpr (std::is_same_v<T, double>) return bits_double(raw);
    else return static_cast<T>(raw);
}

template <class R, class T>
R raw(T value) {
    if constexpr (std::is_same_v<T, Half>) return value.bits;
    else if constexpr (std::is_same_v<T, float>) return float_bits(value);
    else if constexpr (std::is_same_v<T, double>) return double_bits(value);
    else if constexpr (std::is_signed_v<T>) return static_cast<R>(static_cast<std::make_signed_t<R>>(value));
    else return static_cast<R>(value);
}

double real(Half a) { return half_to_float(a.bits); }
double real(float a) { return a; }
double real(double a) { return a; }

template <Rounding ROUND>
double whole(double a) {
    if (ROUND == Rounding::zero) return std::trunc(a);
    if (ROUND == Rounding::down) return std::floor(a);
    if (ROUND == Rounding::up) return std::ceil(a);
    return std::nearbyint(a);
}

template <class D, class S>
D clamp_real(double a) {
    if (a != a) return sizeof(D) == 8 || sizeof(S) == 8 ? static_cast<D>(uint64_t{1} << (sizeof(D) * 8 - 1)) : 0;
    constexpr double LOW = static_cast<double>(std::numeric_limits<D>::min());
    if (a <= LOW) return std::numeric_limits<D>::min();
    if (a >= std::ldexp(1.0, std::numeric_limits<D>::digits)) return std::numeric_limits<D>::max();
    return static_cast<D>(a);
}

template <class D, class S>
D clamp_integer(S a) {
    if (std::cmp_less(a, std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
    if (std::cmp_greater(a, std::numeric_limits<D>::max())) return std::numeric_limits<D>::max();
    return static_cast<D>(a);
}

template <class D, Rounding ROUND>
D to_real(double a) {
    if constexpr (std::is_same_v<D, Half>) return Half{double_to_half(a, ROUND)};
    else if constexpr (std::is_same_v<D, float>) return a != a ? bits_float(0x7fffffff) : rounded<ROUND>(a);
    else return a;
}

template <class D, class S, Rounding ROUND, bool SAT>
D convert(S a) {
    if constexpr (!REAL<D> && !REAL<S>) {
        return SAT ? clamp_integer<D, S>(a) : static_cast<D>(a);
    } else if constexpr (!REAL<D>) {
        return clamp_real<D, S>(whole<ROUND>(real(a)));
    } else if constexpr (!REAL<S>) {
        // a 64-bit integer does not fit a double: to float it is rounded once by the hardware's own conversion
        if constexpr (sizeof(S) == 8 && std::is_same_v<D, float> && ROUND == Rounding::nearest) return static_cast<float>(a);
        return to_real<D, ROUND>(static_cast<double>(a));
    } else {
        double value = real(a);
        if (SAT) value = value > 0 ? (value < 1 ? value : 1) : 0;
        return to_real<D, ROUND>(value);
    }
}

template <class D, class S, Rounding ROUND, bool SAT>
[[gnu::noinline]] void convert_lanes(Raw<D>* to, const Raw<S>* from) {
#pragma GCC ivdep
    for (int l = 0; l < LANES; ++l) to[l] = raw<Raw<D>>(convert<D, S, ROUND, SAT>(read<S>(from[l])));
}

template <class To, class From>
[[gnu::noinline]] void cut(To* to, const From* from) {
    for (int l = 0; l < LANES; ++l) to[l] = static_cast<To>(from[l]);
}

template <class D, class To>
[[gnu::noinline]] void extend(To* to, const Raw<D>* from) {
    for (int l = 0; l < LANES; ++l) to[l] = raw<To>(read<D>(from[l]));
}

// The source register may be wider than its type, the destination too: the lanes then pass through registers of the
// right width, so that a conversion is compiled once.
template <class D, class S, Rounding ROUND, bool SAT, class To, class From>
void run(Warp& warp, const Op& op, uint32_t) {
    To* to = lanes<To>(warp, op.at[0]);
    const From* from = lanes<From>(warp, op.at[1]);
    if constexpr (sizeof(From) > sizeof(Raw<S>)) {
        Raw<S> narrow[LANES];
        cut(narrow, from);
        if constexpr (sizeof(To) > sizeof(Raw<D>)) {
            Raw<D> result[LANES];
            convert_lanes<D, S, ROUND, SAT>(result, narrow);
            extend<D>(to, result);
        } else {
            convert_lanes<D, S, ROUND, SAT>(to, narrow);
        }
    } else if constexpr (sizeof(To) > sizeof(Raw<D>)) {
        Raw<D> result[LANES];
        convert_lanes<D, S, ROUND, SAT>(result, from);
        extend<D>(to, result);
    } else {
        convert_lanes<D, S, ROUND, SAT>(to, from);
    }
}

template <class D, class S, Rounding ROUND, bool SAT, class To, class From>
void add_registers(Forms& forms, std::string_view name) {
    constexpr char operands[] = {upper<To>(), letter<From>(), 0};
    forms.add(name, operands, &run<D, S, ROUND, SAT, To, From>, &keep_others<To>);
}

template <class D, class S, Rounding ROUND, bool SAT>
void add(Forms& forms, std::string_view name) {
    add_registers<D, S, ROUND, SAT, Raw<D>, Raw<S>>(forms, name);
    if constexpr (!REAL<S> && sizeof(S) <= 2) add_registers<D, S, ROUND, SAT, Raw<D>, uint32_t>(forms, name);
    if constexpr (!REAL<S> && sizeof(S) <= 4) add_registers<D, S, ROUND, SAT, Raw<D>, uint64_t>(forms, name);
    if constexpr (!REAL<D> && sizeof(D) <= 2) {
        add_registers<D, S, ROUND, SAT, uint32_t, Raw<S>>(forms, name);
        if constexpr (!REAL<S> && sizeof(S) <= 2) add_registers<D, S, ROUND, SAT, uint32_t, uint32_t>(forms, name);
        if constexpr (!REAL<S> && sizeof(S) <= 4) add_registers<D, S, ROUND, SAT, uint32_t, uint64_t>(forms, name);
    }
}

// Integers of type S to every integer type and to reals.
template <class S>
void add_from_integer(Forms& forms, std::string_view from) {
    add<uint8_t, S, Rounding::nearest, false>(forms, text({"cvt.u8.", from}));
    add<int8_t, S, Rounding::nearest, false>(forms, text({"cvt.s8.", from}));
    add<uint16_t, S, Rounding::nearest, false>(forms, text({"cvt.u16.", from}));
    add<int16_t, S, Rounding::nearest, false>(forms, text({"cvt.s16.", from}));
    add<uint32_t, S, Rounding::nearest, false>(forms, text({"cvt.u32.", from}));
    add<int32_t, S, Rounding::nearest, false>(forms, text({"cvt.s32.", from}));
    add<uint64_t, S, Rounding::nearest, false>(forms, text({"cvt.u64.", from}));
    add<int64_t, S, Rounding::nearest, false>(forms, text({"cvt.s64.", from}));
    add<Half, S, Rounding::nearest, false>(forms, text({"cvt.rn.f16.", from}));
    add<float, S, Rounding::nearest, false>(forms, text({"cvt.rn.f32.", from}));
    add<double, S, Rounding::nearest, false>(forms, text({"cvt.rn.f64.", from}));
    if constexpr (sizeof(S) <= 4) {
        add<float, S, Rounding::zero, false>(forms, text({"cvt.rz.f32.", from}));
        add<float, S, Rounding::down, false>(forms, text({"cvt.rm.f32.", from}));
        add<float, S, Rounding::up, false>(forms, text({"cvt.rp.f32.", from}));
    }
}

template <class S, class D>
void add_to_integer(Forms& forms, std::string_view to, std::string_view from) {
    for (const std::string_view ftz : {"", ".ftz"}) {
        if (ftz == ".ftz" && !std::is_same_v<S, float>) continue;
        const std::string tail = text({ftz, ".", to, ".", from});
        add<D, S, Rounding::nearest, false>(forms, text({"cvt.rni", tail}));
        add<D, S, Rounding::zero, false>(forms, text({"cvt.rzi", tail}));
    }
    add<D, S, Rounding::down, false>(forms, text({"cvt.rmi.", to, ".", from}));
    add<D, S, Rounding::up, false>(forms, text({"cvt.rpi.", to, ".", from}));
}

template <class S>
void add_from_real(Forms& forms, std::string_view from) {
    add_to_integer<S, uint32_t>(forms, "u32", from);
    add_to_integer<S, int32_t>(forms, "s32", from);
    add_to_integer<S, uint64_t>(forms, "u64", from);
    add_to_integer<S, int64_t>(forms, "s64", from);
}

// A real to the same type, rounded to an integral value.
template <class S>
void add_integral(Forms& forms, std::string_view type) {
    each<Raw<S>(Raw<S>)>(forms, text({"cvt.rni.", type, ".", type}), [](Raw<S> a) { return raw<Raw<S>>(to_real<S, Rounding::nearest>(whole<Rounding::nearest>(real(read<S>(a))))); });
    each<Raw<S>(Raw<S>)>(forms, text({"cvt.rzi.", type, ".", type}), [](Raw<S> a) { return raw<Raw<S>>(to_real<S, Rounding::nearest>(whole<Rounding::zero>(real(read<S>(a))))); });
    each<Raw<S>(Raw<S>)>(forms, text({"cvt.rmi.", type, ".", type}), [](Raw<S> a) { return raw<Raw<S>>(to_real<S, Rounding::nearest>(whole<Rounding::down>(real(read<S>(a))))); });
    each<Raw<S>(Raw<S>)>(forms, text({"cvt.rpi.", type, ".", type}), [](Raw<S> a) { return raw<Raw<S>>(to_real<S, Rounding::nearest>(whole<Rounding::up>(real(read<S>(a))))); });
}

template <class D, class S>
void add_narrowing(Forms& forms, std::string_view types) {
    add<D, S, Rounding::nearest, false>(forms, text({"cvt.rn.", types}));
    add<D, S, Rounding::zero, false>(forms, text({"cvt.rz.", types}));
    add<D, S, Rounding::down, false>(forms, text({"cvt.rm.", types}));
    add<D, S, Rounding::up, false>(forms, text({"cvt.rp.", types}));
}

uint32_t pack_bytes(int32_t a, int32_t b, uint32_t c, bool is_signed) {
    const auto byte = [is_signed](int32_t v) {
        return is_signed ? static_cast<uint32_t>(static_cast<uint8_t>(clamp_integer<int8_t>(v))) : static_cast<uint32_t>(clamp_integer<uint8_t>(v));
    };
    return c << 16 | byte(a) << 8 | byte(b);
}

}  // namespace

void add_conversions(Forms& forms) {
    add_from_integer<uint8_t>(forms, "u8");
    add_from_integer<int8_t>(forms, "s8");
    add_from_integer<uint16_t>(forms, "u16");
    add_from_integer<int16_t>(forms, "s16");
    add_from_integer<uint32_t>(forms, "u32");
    add_from_integer<int32_t>(forms, "s32");
    add_from_integer<uint64_t>(forms, "u64");
    add_from_integer<int64_t>(forms, "s64");
    add_from_real<Half>(forms, "f16");
    add_to_integer<Half, uint8_t>(forms, "u8", "f16");
    add_to_integer<Half, int8_t>(forms, "s8", "f16");
    add_to_integer<Half, uint16_t>(forms, "u16", "f16");
    add_to_integer<Half, int16_t>(forms, "s16", "f16");
    add_from_real<float>(forms, "f32");
    add_from_real<double>(forms, "f64");
    add<int8_t, int32_t, Rounding::nearest, true>(forms, "cvt.sat.s8.s32");
    add<uint8_t, int32_t, Rounding::nearest, true>(forms, "cvt.sat.u8.s32");
    add<int16_t, int32_t, Rounding::nearest, true>(forms, "cvt.sat.s16.s32");
    add<uint16_t, int32_t, Rounding::nearest, true>(forms, "cvt.sat.u16.s32");
    add_integral<Half>(forms, "f16");
    add_integral<float>(forms, "f32");
    add_integral<double>(forms, "f64");
    add<float, Half, Rounding::nearest, false>(forms, "cvt.f32.f16");
    add<float, float, Rounding::nearest, true>(forms, "cvt.sat.f32.f32");
    add<double, Half, Rounding::nearest, false>(forms, "cvt.f64.f16");
    add<double, float, Rounding::nearest, false>(forms, "cvt.f64.f32");
    add_narrowing<Half, float>(forms, "f16.f32");
    add<Half, double, Rounding::nearest, false>(forms, "cvt.rn.f16.f64");
    add_narrowing<float, double>(forms, "f32.f64");
    each<uint32_t(float, float)>(forms, "cvt.rn.f16x2.f32", [](float a, float b) { return static_cast<uint32_t>(float_to_half(a)) << 16 | float_to_half(b); });
    each<uint32_t(int32_t, int32_t, uint32_t)>(forms, "cvt.pack.sat.s8.s32.b32", [](int32_t a, int32_t b, uint32_t c) { return pack_bytes(a, b, c, true); });
    each<uint32_t(int32_t, int32_t, uint32_t)>(forms, "cvt.pack.sat.u8.s32.b32", [](int32_t a, int32_t b, uint32_t c) { return pack_bytes(a, b, c, false); });
    each<uint32_t(int32_t, int32_t)>(forms, "cvt.pack.sat.s16.s32", [](int32_t a, int32_t b) {
        return static_cast<uint32_t>(static_cast<uint16_t>(clamp_integer<int16_t>(a))) << 16 | static_cast<uint16_t>(clamp_integer<int16_t>(b));
    });
    each<uint32_t(int32_t, int32_t)>(forms, "cvt.pack.sat.u16.s32", [](int32_t a, int32_t b) {
        return static_cast<uint32_t>(clamp_integer<uint16_t>(a)) << 16 | clamp_integer<uint16_t>(b);
    });
}

}  // namespace vgpu
