// atom and red: PTX ISA 8.5, section 9.7.13. Real atomic operations on the host's memory: blocks run at the same time.
#include <cstring>

#include "access.h"
#include "half.h"
#include "lanes.h"

namespace vgpu {

namespace {

template <class T>
struct Result {
    template <class F>
    static T change(uint8_t* at, F make) {
        T old = __atomic_load_n(reinterpret_cast<T*>(at), __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(reinterpret_cast<T*>(at), &old, make(old), true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        }
        return old;
    }
};

// T: the bits in memory. RETURNS: atom, whose first operand is the destination; red has none.
template <Space SPACE, class T, class F, bool RETURNS>
void atomic(Warp& warp, const Op& op, uint32_t mask) {
    constexpr int A = RETURNS ? 1 : 0;
    Hint hint;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        uint8_t* at = bytes_at<SPACE>(warp, address_of(warp, op, A, l), sizeof(T), l, Use::update, hint);
        const T b = lanes<T>(warp, op.at[A + 1])[l];
        const T old = Result<T>::change(at, [b](T now) { return F{}(now, b); });
        if (RETURNS) lanes<T>(warp, op.at[0])[l] = old;
    }
}

template <Space SPACE, class T>
void compare_and_swap(Warp& warp, const Op& op, uint32_t mask) {
    Hint hint;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        uint8_t* at = bytes_at<SPACE>(warp, address_of(warp, op, 1, l), sizeof(T), l, Use::update, hint);
        const T b = lanes<T>(warp, op.at[2])[l], c = lanes<T>(warp, op.at[3])[l];
        lanes<T>(warp, op.at[0])[l] = Result<T>::change(at, [b, c](T now) { return now == b ? c : now; });
    }
}

template <class T> struct Sum { T operator()(T a, T b) const { return static_cast<T>(a + b); } };
template <class T> struct SumReal {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    Bits operator()(Bits a, Bits b) const {
        T x, y;
        std::memcpy(&x, &a, sizeof x);
        std::memcpy(&y, &b, sizeof y);
        x += y;
        std::memcpy(&a, &x, sizeof x);
        return a;
    }
};
struct SumHalves {
    uint32_t operator()(uint32_t a, uint32_t b) const {
        const auto add = [](uint32_t x, uint32_t y) {
            return static_cast<uint32_t>(float_to_half(half_to_float(static_cast<uint16_t>(x)) + half_to_float(static_cast<uint16_t>(y))));
        };
        return add(a >> 16, b >> 16) << 16 | add(a, b);
    }
};
template <class T> struct Least { auto operator()(std::make_unsigned_t<T> a, std::make_unsigned_t<T> b) const { return static_cast<T>(a) < static_cast<T>(b) ? a : b; } };
template <class T> struct Most { auto operator()(std::make_unsigned_t<T> a, std::make_unsigned_t<T> b) const { return static_cast<T>(a) > static_cast<T>(b) ? a : b; } };
template <class T> struct And { T operator()(T a, T b) const { return a & b; } };
template <class T> struct Or { T operator()(T a, T b) const { return a | b; } };
template <class T> struct Xor { T operator()(T a, T b) const { return a ^ b; } };
template <class T> struct Exchange { T operator()(T, T b) const { return b; } };
struct Increment { uint32_t operator()(uint32_t a, uint32_t b) const { return a >= b ? 0 : a + 1; } };
struct Decrement { uint32_t operator()(uint32_t a, uint32_t b) const { return a == 0 || a > b ? b : a - 1; } };

void add_pair(Forms& forms, std::string_view head, std::string_view tail, char kind, Handler atom, Handler red) {
    const char result = static_cast<char>(kind - 'a' + 'A');
    const std::string_view letter(&kind, 1), upper(&result, 1);
    forms.add(text({"atom", head, tail}), text({upper, "@", letter}), atom);
    if (!tail.starts_with(".exch")) forms.add(text({"red", head, tail}), text({"@", letter}), red);
}

template <Space SPACE, class T, class F>
void add(Forms& forms, std::string_view head, std::string_view tail) {
    add_pair(forms, head, tail, letter<T>(), &atomic<SPACE, T, F, true>, &atomic<SPACE, T, F, false>);
}

template <Space SPACE>
void add_space(Forms& forms, std::string_view head) {
    for (const char* type : {".add.u32", ".add.s32"}) add<SPACE, uint32_t, Sum<uint32_t>>(forms, head, type);
    add<SPACE, uint64_t, Sum<uint64_t>>(forms, head, ".add.u64");
    add<SPACE, uint32_t, SumReal<float>>(forms, head, ".add.f32");
    add<SPACE, uint64_t, SumReal<double>>(forms, head, ".add.f64");
    add<SPACE, uint32_t, SumHalves>(forms, head, ".add.noftz.f16x2");
    add<SPACE, uint32_t, Least<uint32_t>>(forms, head, ".min.u32");
    add<SPACE, uint32_t, Least<int32_t>>(forms, head, ".min.s32");
    add<SPACE, uint64_t, Least<uint64_t>>(forms, head, ".min.u64");
    add<SPACE, uint64_t, Least<int64_t>>(forms, head, ".min.s64");
    add<SPACE, uint32_t, Most<uint32_t>>(forms, head, ".max.u32");
    add<SPACE, uint32_t, Most<int32_t>>(forms, head, ".max.s32");
    add<SPACE, uint64_t, Most<uint64_t>>(forms, head, ".max.u64");
    add<SPACE, uint64_t, Most<int64_t>>(forms, head, ".max.s64");
    add<SPACE, uint32_t, And<uint32_t>>(forms, head, ".and.b32");
    add<SPACE, uint32_t, Or<uint32_t>>(forms, head, ".or.b32");
    add<SPACE, uint32_t, Xor<uint32_t>>(forms, head, ".xor.b32");
    add<SPACE, uint64_t, And<uint64_t>>(forms, head, ".and.b64");
    add<SPACE, uint64_t, Or<uint64_t>>(forms, head, ".or.b64");
    add<SPACE, uint64_t, Xor<uint64_t>>(forms, head, ".xor.b64");
    add<SPACE, uint32_t, Exchange<uint32_t>>(forms, head, ".exch.b32");
    add<SPACE, uint64_t, Exchange<uint64_t>>(forms, head, ".exch.b64");
    add<SPACE, uint32_t, Increment>(forms, head, ".inc.u32");
    add<SPACE, uint32_t, Decrement>(forms, head, ".dec.u32");
    forms.add(text({"atom", head, ".cas.b16"}), "H@hh", &compare_and_swap<SPACE, uint16_t>);
    forms.add(text({"atom", head, ".cas.b32"}), "W@ww", &compare_and_swap<SPACE, uint32_t>);
    forms.add(text({"atom", head, ".cas.b64"}), "D@dd", &compare_and_swap<SPACE, uint64_t>);
}

}  // namespace

void add_atomics(Forms& forms) {
    for (const std::string order : {"", ".relaxed", ".acquire", ".release", ".acq_rel"})
        for (const std::string scope : {"", ".cta", ".gpu", ".sys"}) {
            if (!order.empty() && scope.empty()) continue;
            add_space<Space::generic>(forms, order + scope);
            add_space<Space::global>(forms, order + scope + ".global");
            add_space<Space::shared>(forms, order + scope + ".shared");
            add_space<Space::shared>(forms, order + scope + ".shared::cta");
        }
}

}  // namespace vgpu
