// atom and red: PTX ISA 8.5, section 9.7.13. Real atomic operations on the host's memory: blocks run at the same time.
#include <cmath>
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
template <bool FTZ> struct SumFloat {
    static float flush(float a) { return FTZ && std::fabs(a) < 0x1p-126f ? std::copysign(0.0f, a) : a; }
    uint32_t operator()(uint32_t a, uint32_t b) const {
        const float sum = flush(flush(bits_float(a)) + flush(bits_float(b)));
        return sum != sum ? 0x7fffffff : float_bits(sum);
    }
};
struct SumDouble {
    uint64_t operator()(uint64_t a, uint64_t b) const { return double_bits(bits_double(a) + bits_double(b)); }
};
struct SumHalf {
    uint16_t operator()(uint16_t a, uint16_t b) const { return float_to_half(half_to_float(a) + half_to_float(b)); }
};
struct SumHalves {
    uint32_t operator()(uint32_t a, uint32_t b) const {
        const uint32_t high = SumHalf{}(static_cast<uint16_t>(a >> 16), static_cast<uint16_t>(b >> 16));
        return high << 16 | SumHalf{}(static_cast<uint16_t>(a), static_cast<uint16_t>(b));
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

// In global memory subnormal numbers are flushed, in shared memory they are not (PTX ISA, atom).
template <Space SPACE, bool RETURNS>
void add_float(Warp& warp, const Op& op, uint32_t mask) {
    uint32_t shared = SPACE == Space::shared ? mask : 0;
    for (uint32_t rest = SPACE == Space::generic ? mask : 0; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        if ((address_of(warp, op, RETURNS ? 1 : 0, l) & WINDOW_MASK) == SHARED_WINDOW) shared |= 1u << l;
    }
    atomic<SPACE, uint32_t, SumFloat<false>, RETURNS>(warp, op, shared);
    atomic<SPACE, uint32_t, SumFloat<true>, RETURNS>(warp, op, mask & ~shared);
}

template <Space SPACE>
void add_space(Forms& forms, std::string_view head) {
    for (const char* type : {".add.u32", ".add.s32"}) add<SPACE, uint32_t, Sum<uint32_t>>(forms, head, type);
    add<SPACE, uint64_t, Sum<uint64_t>>(forms, head, ".add.u64");
    add_pair(forms, head, ".add.f32", 'w', &add_float<SPACE, true>, &add_float<SPACE, false>);
    add<SPACE, uint64_t, SumDouble>(forms, head, ".add.f64");
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
    add<SPACE, uint16_t, SumHalf>(forms, head, ".add.noftz.f16");
    forms.add(text({"atom", head, ".cas.b16"}), "H@hh", &compare_and_swap<SPACE, uint16_t>);
    forms.add(text({"atom", head, ".cas.b32"}), "W@ww", &compare_and_swap<SPACE, uint32_t>);
    forms.add(text({"atom", head, ".cas.b64"}), "D@dd", &compare_and_swap<SPACE, uint64_t>);
}

}  // namespace

void add_atomics(Forms& forms) {
    // NVRTC writes the scope behind the space, the ISA before it; without one it is the GPU
    add_space<Space::generic>(forms, "");
    add_space<Space::global>(forms, ".global");
    add_space<Space::shared>(forms, ".shared");
    for (const std::string scope : {".cta", ".sys"}) {
        add_space<Space::generic>(forms, scope);
        add_space<Space::global>(forms, ".global" + scope);
        add_space<Space::shared>(forms, ".shared" + scope);
    }
}

}  // namespace vgpu
