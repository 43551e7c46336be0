// float16 arithmetic, one and two at a time: PTX ISA 8.5, section 9.7.4. float32 has bits enough that rounding a sum or
// product of two halves twice equals rounding it once; fma is rounded from the exact sum.
#include <cmath>

#include "half.h"
#include "lanes.h"

namespace vgpu {

namespace {

struct Add { uint16_t operator()(uint16_t a, uint16_t b) const { return float_to_half(half_to_float(a) + half_to_float(b)); } };
struct Subtract { uint16_t operator()(uint16_t a, uint16_t b) const { return float_to_half(half_to_float(a) - half_to_float(b)); } };
struct Multiply { uint16_t operator()(uint16_t a, uint16_t b) const { return float_to_half(half_to_float(a) * half_to_float(b)); } };
struct Fma { uint16_t operator()(uint16_t a, uint16_t b, uint16_t c) const { return half_fma(a, b, c); } };

bool is_nan(uint16_t a) { return (a & 0x7fff) > 0x7c00; }

// Orders halves as integers: -0 before +0.
int ordered(uint16_t a) { return a & 0x8000 ? -static_cast<int>(a & 0x7fff) - 1 : a; }

template <bool LEAST, bool KEEP_NAN>
struct Extreme {
    uint16_t operator()(uint16_t a, uint16_t b) const {
        if (is_nan(a) || is_nan(b)) return KEEP_NAN || (is_nan(a) && is_nan(b)) ? HALF_NAN : is_nan(a) ? b : a;
        return (ordered(a) < ordered(b)) == LEAST ? a : b;
    }
};
struct Negate { uint16_t operator()(uint16_t a) const { return a ^ 0x8000; } };
struct Absolute { uint16_t operator()(uint16_t a) const { return a & 0x7fff; } };

template <class F>
struct Saturated {
    template <class... A>
    uint16_t operator()(A... a) const {
        const float value = half_to_float(F{}(a...));
        return value > 0 ? (value < 1 ? float_to_half(value) : 0x3c00) : 0;
    }
};

template <class F>
struct Rectified {
    template <class... A>
    uint16_t operator()(A... a) const {
        const uint16_t value = F{}(a...);
        return is_nan(value) ? HALF_NAN : value & 0x8000 ? 0 : value;
    }
};

template <class F, class... A>
uint32_t both(A... a) {
    return static_cast<uint32_t>(F{}(static_cast<uint16_t>(a >> 16)...)) << 16 | F{}(static_cast<uint16_t>(a)...);
}

template <class F>
void add_one(Forms& forms, const std::string& name) {
    each<uint16_t(uint16_t)>(forms, name + ".f16", [](uint16_t a) { return F{}(a); });
    each<uint32_t(uint32_t)>(forms, name + ".f16x2", [](uint32_t a) { return both<F>(a); });
}
template <class F>
void add_two(Forms& forms, const std::string& name) {
    each<uint16_t(uint16_t, uint16_t)>(forms, name + ".f16", [](uint16_t a, uint16_t b) { return F{}(a, b); });
    each<uint32_t(uint32_t, uint32_t)>(forms, name + ".f16x2", [](uint32_t a, uint32_t b) { return both<F>(a, b); });
}
template <class F>
void add_three(Forms& forms, const std::string& name) {
    each<uint16_t(uint16_t, uint16_t, uint16_t)>(forms, name + ".f16", [](uint16_t a, uint16_t b, uint16_t c) { return F{}(a, b, c); });
    each<uint32_t(uint32_t, uint32_t, uint32_t)>(forms, name + ".f16x2", [](uint32_t a, uint32_t b, uint32_t c) { return both<F>(a, b, c); });
}

}  // namespace

void add_halves(Forms& forms) {
    for (const std::string rn : {"", ".rn"}) {
        add_two<Add>(forms, "add" + rn);
        add_two<Subtract>(forms, "sub" + rn);
        add_two<Multiply>(forms, "mul" + rn);
        add_two<Saturated<Add>>(forms, "add" + rn + ".sat");
        add_two<Saturated<Subtract>>(forms, "sub" + rn + ".sat");
        add_two<Saturated<Multiply>>(forms, "mul" + rn + ".sat");
    }
    add_three<Fma>(forms, "fma.rn");
    add_three<Saturated<Fma>>(forms, "fma.rn.sat");
    add_three<Rectified<Fma>>(forms, "fma.rn.relu");
    add_two<Extreme<true, false>>(forms, "min");
    add_two<Extreme<false, false>>(forms, "max");
    add_two<Extreme<true, true>>(forms, "min.NaN");
    add_two<Extreme<false, true>>(forms, "max.NaN");
    add_one<Negate>(forms, "neg");
    add_one<Absolute>(forms, "abs");
}

}  // namespace vgpu
