// setp and selp: PTX ISA 8.5, sections 9.7.5 and 9.7.6. NVRTC joins predicates with and.pred, not in setp.
#include <cmath>

#include "half.h"
#include "lanes.h"

namespace vgpu {

namespace {

struct Half {
    uint16_t bits;
};
float number(Half a) { return half_to_float(a.bits); }
template <class T>
T number(T a) { return a; }

// The ordered tests are false for NaN, the ones ending in u true.
struct Equal { template <class T> bool operator()(T a, T b) const { return a == b; } };
struct NotEqual { template <class T> bool operator()(T a, T b) const { return a < b || a > b; } };
struct Less { template <class T> bool operator()(T a, T b) const { return a < b; } };
struct LessEqual { template <class T> bool operator()(T a, T b) const { return a <= b; } };
struct Greater { template <class T> bool operator()(T a, T b) const { return a > b; } };
struct GreaterEqual { template <class T> bool operator()(T a, T b) const { return a >= b; } };
struct EqualU { template <class T> bool operator()(T a, T b) const { return !(a < b || a > b); } };
struct NotEqualU { template <class T> bool operator()(T a, T b) const { return a != b; } };
struct LessU { template <class T> bool operator()(T a, T b) const { return !(a >= b); } };
struct LessEqualU { template <class T> bool operator()(T a, T b) const { return !(a > b); } };
struct GreaterU { template <class T> bool operator()(T a, T b) const { return !(a <= b); } };
struct GreaterEqualU { template <class T> bool operator()(T a, T b) const { return !(a < b); } };
struct Number { template <class T> bool operator()(T a, T b) const { return a == a && b == b; } };
struct NotANumber { template <class T> bool operator()(T a, T b) const { return a != a || b != b; } };

template <bool FTZ, class T>
T flushed(T a) {
    if constexpr (FTZ) return std::fabs(a) < 0x1p-126f ? std::copysign(T{0}, a) : a;
    else return a;
}

template <class T, class How, bool FTZ>
bool holds(T a, T b) { return How{}(flushed<FTZ>(number(a)), flushed<FTZ>(number(b))); }

template <class T, class How, bool FTZ>
void add_test(Forms& forms, std::string_view name, std::string_view ftz, std::string_view type) {
    each<bool(T, T)>(forms, text({"setp.", name, ftz, type}), [](T a, T b) { return holds<T, How, FTZ>(a, b); });
}

template <class T>
void add_equality(Forms& forms, std::string_view type) {
    add_test<T, Equal, false>(forms, "eq", "", type);
    add_test<T, NotEqual, false>(forms, "ne", "", type);
}

template <class T, bool FTZ = false>
void add_order(Forms& forms, std::string_view type, std::string_view ftz = "") {
    add_test<T, Equal, FTZ>(forms, "eq", ftz, type);
    add_test<T, NotEqual, FTZ>(forms, "ne", ftz, type);
    add_test<T, Less, FTZ>(forms, "lt", ftz, type);
    add_test<T, LessEqual, FTZ>(forms, "le", ftz, type);
    add_test<T, Greater, FTZ>(forms, "gt", ftz, type);
    add_test<T, GreaterEqual, FTZ>(forms, "ge", ftz, type);
}

template <class T, bool FTZ = false>
void add_unordered(Forms& forms, std::string_view type, std::string_view ftz = "") {
    add_test<T, EqualU, FTZ>(forms, "equ", ftz, type);
    add_test<T, NotEqualU, FTZ>(forms, "neu", ftz, type);
    add_test<T, LessU, FTZ>(forms, "ltu", ftz, type);
    add_test<T, LessEqualU, FTZ>(forms, "leu", ftz, type);
    add_test<T, GreaterU, FTZ>(forms, "gtu", ftz, type);
    add_test<T, GreaterEqualU, FTZ>(forms, "geu", ftz, type);
    add_test<T, Number, FTZ>(forms, "num", ftz, type);
    add_test<T, NotANumber, FTZ>(forms, "nan", ftz, type);
}

template <class T>
void add_choice(Forms& forms, std::initializer_list<const char*> types) {
    for (const char* type : types) {
        each<T(T, T, bool)>(forms, text({"selp.", type}), [](T a, T b, bool c) { return c ? a : b; });
    }
}

}  // namespace

void add_comparisons(Forms& forms) {
    add_equality<uint16_t>(forms, ".b16");
    add_equality<uint32_t>(forms, ".b32");
    add_equality<uint64_t>(forms, ".b64");
    add_order<uint16_t>(forms, ".u16");
    add_order<int16_t>(forms, ".s16");
    add_order<uint32_t>(forms, ".u32");
    add_order<int32_t>(forms, ".s32");
    add_order<uint64_t>(forms, ".u64");
    add_order<int64_t>(forms, ".s64");
    add_order<float>(forms, ".f32");
    add_unordered<float>(forms, ".f32");
    add_order<float, true>(forms, ".f32", ".ftz");
    add_unordered<float, true>(forms, ".f32", ".ftz");
    add_order<double>(forms, ".f64");
    add_unordered<double>(forms, ".f64");
    add_order<Half>(forms, ".f16");
    add_unordered<Half>(forms, ".f16");
    add_choice<uint16_t>(forms, {"b16", "u16", "s16"});
    add_choice<uint32_t>(forms, {"b32", "u32", "s32", "f32"});
    add_choice<uint64_t>(forms, {"b64", "u64", "s64", "f64"});
}

}  // namespace vgpu
