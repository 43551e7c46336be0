// Integer arithmetic: PTX ISA 8.5, sections 9.7.1 and 9.7.2. Compiled with -fwrapv.
#include <limits>

#include "lanes.h"

namespace vgpu {

namespace {

template <class T>
struct Twice;
template <> struct Twice<uint16_t> { using type = uint32_t; };
template <> struct Twice<int16_t> { using type = int32_t; };
template <> struct Twice<uint32_t> { using type = uint64_t; };
template <> struct Twice<int32_t> { using type = int64_t; };
template <> struct Twice<uint64_t> { using type = unsigned __int128; };
template <> struct Twice<int64_t> { using type = __int128; };

template <class T>
T high(T a, T b) {
    using Wide = typename Twice<T>::type;
    return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> (sizeof(T) * 8));
}

// Division by zero gives all ones, its remainder the dividend; the most negative by -1 wraps: what the hardware's own
// sequence gives. The ISA leaves division by zero open.
template <class T>
T quotient(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(T{0} - a);
    return static_cast<T>(a / b);
}

template <class T>
T remainder(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
}

template <class T>
void add_type(Forms& forms, const std::string& type) {
    each<T(T, T)>(forms, "add." + type, [](T a, T b) { return static_cast<T>(a + b); });
    each<T(T, T)>(forms, "sub." + type, [](T a, T b) { return static_cast<T>(a - b); });
    each<T(T, T)>(forms, "mul.lo." + type, [](T a, T b) { return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); });
    each<T(T, T)>(forms, "mul.hi." + type, [](T a, T b) { return high<T>(a, b); });
    each<T(T, T, T)>(forms, "mad.lo." + type, [](T a, T b, T c) {
        return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b) + static_cast<uint64_t>(c));
    });
    each<T(T, T, T)>(forms, "mad.hi." + type, [](T a, T b, T c) { return static_cast<T>(high<T>(a, b) + c); });
    each<T(T, T)>(forms, "div." + type, [](T a, T b) { return quotient<T>(a, b); });
    each<T(T, T)>(forms, "rem." + type, [](T a, T b) { return remainder<T>(a, b); });
    each<T(T, T)>(forms, "min." + type, [](T a, T b) { return a < b ? a : b; });
    each<T(T, T)>(forms, "max." + type, [](T a, T b) { return a > b ? a : b; });
    each<T(T, T, T)>(forms, "sad." + type, [](T a, T b, T c) { return static_cast<T>(c + (a < b ? b - a : a - b)); });
    if constexpr (std::is_signed_v<T>) {
        each<T(T)>(forms, "abs." + type, [](T a) { return static_cast<T>(a < 0 ? -a : a); });
        each<T(T)>(forms, "neg." + type, [](T a) { return static_cast<T>(-a); });
    }
    if constexpr (sizeof(T) < 8) {
        using Wide = typename Twice<T>::type;
        each<Wide(T, T)>(forms, "mul.wide." + type, [](T a, T b) { return static_cast<Wide>(static_cast<Wide>(a) * static_cast<Wide>(b)); });
        each<Wide(T, T, Wide)>(forms, "mad.wide." + type, [](T a, T b, Wide c) {
            return static_cast<Wide>(static_cast<Wide>(a) * static_cast<Wide>(b) + c);
        });
    }
}

int32_t saturate(int64_t value) {
    return value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : static_cast<int32_t>(value);
}

template <class A, class B, class R>
R dot4(uint32_t a, uint32_t b, R c) {
    for (int i = 0; i < 4; ++i) c += static_cast<R>(static_cast<A>(a >> i * 8)) * static_cast<R>(static_cast<B>(b >> i * 8));
    return c;
}

template <class A, class B, class R, int HIGH>
R dot2(uint32_t a, uint32_t b, R c) {
    using Half = std::conditional_t<std::is_signed_v<A>, int16_t, uint16_t>;
    for (int i = 0; i < 2; ++i)
        c += static_cast<R>(static_cast<Half>(a >> i * 16)) * static_cast<R>(static_cast<B>(b >> (i + HIGH * 2) * 8));
    return c;
}

template <class A, class B, class R>
void add_dot(Forms& forms, const std::string& types) {
    each<R(uint32_t, uint32_t, R)>(forms, "dp4a." + types, [](uint32_t a, uint32_t b, R c) { return dot4<A, B, R>(a, b, c); });
    each<R(uint32_t, uint32_t, R)>(forms, "dp2a.lo." + types, [](uint32_t a, uint32_t b, R c) { return dot2<A, B, R, 0>(a, b, c); });
    each<R(uint32_t, uint32_t, R)>(forms, "dp2a.hi." + types, [](uint32_t a, uint32_t b, R c) { return dot2<A, B, R, 1>(a, b, c); });
}

// add.cc, addc, sub.cc, subc, mad.cc, madc: the carry flag is a register of each lane.
enum class Carry { none, in, out, both };

template <class T, Carry CARRY, bool SUBTRACT, int OPERANDS_OF_SUM, bool HIGH>
void with_carry(Warp& warp, const Op& op, uint32_t mask) {
    using Wide = typename Twice<T>::type;
    for (int l = 0; l < LANES; ++l) {
        if (!(mask >> l & 1)) continue;
        const T a = lanes<T>(warp, op.at[1])[l], b = lanes<T>(warp, op.at[2])[l];
        Wide left, right;
        if constexpr (OPERANDS_OF_SUM == 3) {
            left = HIGH ? high<T>(a, b) : static_cast<T>(static_cast<Wide>(a) * b);
            right = lanes<T>(warp, op.at[3])[l];
        } else {
            left = a;
            right = b;
        }
        const Wide carry = CARRY == Carry::in || CARRY == Carry::both ? warp.carry[l] : 0;
        const Wide sum = SUBTRACT ? left - right - carry : left + right + carry;
        lanes<T>(warp, op.at[0])[l] = static_cast<T>(sum);
        if (CARRY == Carry::out || CARRY == Carry::both) warp.carry[l] = static_cast<uint32_t>(sum >> (sizeof(T) * 8)) & 1;
    }
}

template <class T>
void add_carries(Forms& forms, const std::string& letter, std::initializer_list<const char*> types) {
    const std::string two = std::string(1, static_cast<char>(letter[0] - 'a' + 'A')) + letter + letter, three = two + letter;
    for (const std::string type : types) {
        forms.add("add.cc." + type, two, &with_carry<T, Carry::out, false, 2, false>);
        forms.add("addc." + type, two, &with_carry<T, Carry::in, false, 2, false>);
        forms.add("addc.cc." + type, two, &with_carry<T, Carry::both, false, 2, false>);
        forms.add("sub.cc." + type, two, &with_carry<T, Carry::out, true, 2, false>);
        forms.add("subc." + type, two, &with_carry<T, Carry::in, true, 2, false>);
        forms.add("subc.cc." + type, two, &with_carry<T, Carry::both, true, 2, false>);
        forms.add("mad.lo.cc." + type, three, &with_carry<T, Carry::out, false, 3, false>);
        forms.add("madc.lo." + type, three, &with_carry<T, Carry::in, false, 3, false>);
        forms.add("madc.lo.cc." + type, three, &with_carry<T, Carry::both, false, 3, false>);
        if (type[0] == 's') continue;
        forms.add("mad.hi.cc." + type, three, &with_carry<T, Carry::out, false, 3, true>);
        forms.add("madc.hi." + type, three, &with_carry<T, Carry::in, false, 3, true>);
        forms.add("madc.hi.cc." + type, three, &with_carry<T, Carry::both, false, 3, true>);
    }
}

}  // namespace

void add_integers(Forms& forms) {
    add_type<uint16_t>(forms, "u16");
    add_type<int16_t>(forms, "s16");
    add_type<uint32_t>(forms, "u32");
    add_type<int32_t>(forms, "s32");
    add_type<uint64_t>(forms, "u64");
    add_type<int64_t>(forms, "s64");
    each<int32_t(int32_t, int32_t)>(forms, "add.sat.s32", [](int32_t a, int32_t b) { return saturate(static_cast<int64_t>(a) + b); });
    each<int32_t(int32_t, int32_t)>(forms, "sub.sat.s32", [](int32_t a, int32_t b) { return saturate(static_cast<int64_t>(a) - b); });
    add_dot<int8_t, int8_t, int32_t>(forms, "s32.s32");
    add_dot<int8_t, uint8_t, int32_t>(forms, "s32.u32");
    add_dot<uint8_t, int8_t, int32_t>(forms, "u32.s32");
    add_dot<uint8_t, uint8_t, uint32_t>(forms, "u32.u32");
    add_carries<uint32_t>(forms, "w", {"u32", "s32"});
    add_carries<uint64_t>(forms, "d", {"u64", "s64"});
}

}  // namespace vgpu
