// setp, set, selp, slct: PTX ISA 8.5, section 9.7.5 and 9.7.6.
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

enum class Join { none, with_and, with_or, with_xor };

template <bool FTZ, class T>
T flushed(T a) {
    if constexpr (FTZ) return std::fabs(a) < 0x1p-126f ? std::copysign(T{0}, a) : a;
    else return a;
}

template <class T, class How, bool FTZ>
bool holds(T a, T b) { return How{}(flushed<FTZ>(number(a)), flushed<FTZ>(number(b))); }

// Every lane's answer, -1 or 0, to operands that lie at `a` and `b`.
using Ask = void (*)(const uint8_t* a, const uint8_t* b, int32_t* answers);

template <class T, class How, bool FTZ>
void ask(const uint8_t* a, const uint8_t* b, int32_t* answers) {
    const T* left = reinterpret_cast<const T*>(a);
    const T* right = reinterpret_cast<const T*>(b);
    for (int l = 0; l < LANES; ++l) answers[l] = -static_cast<int32_t>(holds<T, How, FTZ>(left[l], right[l]));
}

[[gnu::noinline]] void conclude(Warp& warp, const Op& op, uint32_t mask, Ask asked, Join join, bool two) {
    int32_t answers[LANES], results[2][LANES];
    asked(lanes<uint8_t>(warp, op.at[two + 1]), lanes<uint8_t>(warp, op.at[two + 2]), answers);
    const int32_t* c = lanes<int32_t>(warp, op.at[join == Join::none ? 0 : two ? 4 : 3]);
    for (int l = 0; l < LANES; ++l) {
        const int32_t joined = op.negated ? ~c[l] : c[l];
        for (int r = 0; r <= two; ++r) {
            const int32_t answer = r == 0 ? answers[l] : ~answers[l];
            results[r][l] = join == Join::none ? answer : join == Join::with_and ? answer & joined
                          : join == Join::with_or ? answer | joined : answer ^ joined;
        }
    }
    for (int r = 0; r <= two; ++r)
        for (int l = 0; l < LANES; ++l)
            if (mask >> l & 1) lanes<int32_t>(warp, op.at[r])[l] = results[r][l];
}

// setp with two results (the second is of the opposite test) and with a predicate joined in.
template <class T, class How, bool FTZ, Join JOIN, bool TWO>
void setp(Warp& warp, const Op& op, uint32_t mask) { conclude(warp, op, mask, &ask<T, How, FTZ>, JOIN, TWO); }

// `yes`: the bits that stand for true; 0 for false.
[[gnu::noinline]] void answer(Warp& warp, const Op& op, uint32_t mask, Ask asked, uint32_t yes) {
    int32_t answers[LANES];
    asked(lanes<uint8_t>(warp, op.at[1]), lanes<uint8_t>(warp, op.at[2]), answers);
    for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1) lanes<uint32_t>(warp, op.at[0])[l] = static_cast<uint32_t>(answers[l]) & yes;
}

template <class T, class How, bool FTZ, uint32_t YES>
void set(Warp& warp, const Op& op, uint32_t mask) { answer(warp, op, mask, &ask<T, How, FTZ>, YES); }

// The handlers of one test of one type. Names are put together outside of the templates, which are many.
struct Test {
    char letter;  // of the operands
    Handler joined[4][2];  // by Join, and whether there are two results
    Handler as_ones, as_real;
};

void add_setp(Forms& forms, std::string_view name, std::string_view tail, const Test& test) {
    const std::string two(2, test.letter);
    forms.add(text({"setp.", name, tail}), "P|P" + two, test.joined[0][1]);
    const char* const joins[] = {"", ".and", ".or", ".xor"};
    for (int join = 1; join < 4; ++join) {
        forms.add(text({"setp.", name, joins[join], tail}), "P" + two + "n", test.joined[join][0]);
        forms.add(text({"setp.", name, joins[join], tail}), "P|P" + two + "n", test.joined[join][1]);
    }
}

void add_set(Forms& forms, std::string_view head, std::string_view type, const Test& test) {
    const std::string operands = {'W', test.letter, test.letter};
    forms.add(text({"set.", head, ".u32", type}), operands, test.as_ones);
    forms.add(text({"set.", head, ".s32", type}), operands, test.as_ones);
    forms.add(text({"set.", head, ".f32", type}), operands, test.as_real);
}

template <class T, class How, bool FTZ>
void add_test(Forms& forms, std::string_view name, std::string_view ftz, std::string_view type) {
    static constexpr Test test{letter<T>(),
                               {{nullptr, &setp<T, How, FTZ, Join::none, true>},
                                {&setp<T, How, FTZ, Join::with_and, false>, &setp<T, How, FTZ, Join::with_and, true>},
                                {&setp<T, How, FTZ, Join::with_or, false>, &setp<T, How, FTZ, Join::with_or, true>},
                                {&setp<T, How, FTZ, Join::with_xor, false>, &setp<T, How, FTZ, Join::with_xor, true>}},
                               &set<T, How, FTZ, 0xffffffff>,
                               &set<T, How, FTZ, 0x3f800000>};
    each<bool(T, T)>(forms, text({"setp.", name, ftz, type}), [](T a, T b) { return holds<T, How, FTZ>(a, b); });
    add_setp(forms, name, text({ftz, type}), test);
    if constexpr (sizeof(T) >= 4) add_set(forms, text({name, ftz}), type, test);
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

template <class T>
void add_unsigned_words(Forms& forms, std::string_view type) {  // lo, ls, hi, hs
    add_test<T, Less, false>(forms, "lo", "", type);
    add_test<T, LessEqual, false>(forms, "ls", "", type);
    add_test<T, Greater, false>(forms, "hi", "", type);
    add_test<T, GreaterEqual, false>(forms, "hs", "", type);
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
        each<T(T, T, int32_t)>(forms, text({"slct.", type, ".s32"}), [](T a, T b, int32_t c) { return c >= 0 ? a : b; });
        each<T(T, T, float)>(forms, text({"slct.", type, ".f32"}), [](T a, T b, float c) { return c >= 0 ? a : b; });
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
    add_unsigned_words<uint16_t>(forms, ".u16");
    add_unsigned_words<uint32_t>(forms, ".u32");
    add_unsigned_words<uint64_t>(forms, ".u64");
    add_order<float>(forms, ".f32");
    add_unordered<float>(forms, ".f32");
    add_order<float, true>(forms, ".f32", ".ftz");
    add_unordered<float, true>(forms, ".f32", ".ftz");
    add_order<double>(forms, ".f64");
    add_unordered<double>(forms, ".f64");
    add_order<Half>(forms, ".f16");
    add_unordered<Half>(forms, ".f16");
    add_choice<uint16_t>(forms, {"b16", "u16", "s16", "f16"});
    add_choice<uint32_t>(forms, {"b32", "u32", "s32", "f32"});
    add_choice<uint64_t>(forms, {"b64", "u64", "s64", "f64"});
}

}  // namespace vgpu
