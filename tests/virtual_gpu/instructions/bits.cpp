// Logic, shifts and bit fields: PTX ISA 8.5, sections 9.7.1 and 9.7.7.
#include "lanes.h"

namespace vgpu {

namespace {

template <class T>
void add_logic(Forms& forms, const std::string& type) {
    each<T(T, T)>(forms, "and." + type, [](T a, T b) { return static_cast<T>(a & b); });
    each<T(T, T)>(forms, "or." + type, [](T a, T b) { return static_cast<T>(a | b); });
    each<T(T, T)>(forms, "xor." + type, [](T a, T b) { return static_cast<T>(a ^ b); });
    each<T(T)>(forms, "not." + type, [](T a) { return static_cast<T>(~a); });
    // a shift by the width or more gives 0, or all sign bits
    each<T(T, uint32_t)>(forms, "shl." + type, [](T a, uint32_t n) { return n >= sizeof(T) * 8 ? T{0} : static_cast<T>(a << n); });
}

template <class T>
void add_right_shift(Forms& forms, const std::string& type) {
    each<T(T, uint32_t)>(forms, "shr." + type, [](T a, uint32_t n) {
        constexpr uint32_t BITS = sizeof(T) * 8;
        if (std::is_signed_v<T>) return static_cast<T>(a >> (n >= BITS ? BITS - 1 : n));
        return n >= BITS ? T{0} : static_cast<T>(a >> n);
    });
}

template <class T>
T extract(T a, uint32_t position, uint32_t length) {
    using U = std::make_unsigned_t<T>;
    constexpr uint32_t BITS = sizeof(T) * 8;
    position &= 255;
    length &= 255;
    const auto bits = static_cast<U>(a);
    const uint32_t top = position + length - 1 < BITS ? position + length - 1 : BITS - 1;
    const bool sign = std::is_signed_v<T> && length != 0 && (bits >> top & 1);
    U result = 0;
    for (uint32_t i = 0; i < BITS; ++i) {
        const bool bit = i < length && position + i < BITS ? bits >> (position + i) & 1 : sign;
        result |= static_cast<U>(static_cast<U>(bit) << i);
    }
    return static_cast<T>(result);
}

template <class T>
T insert(T a, T b, uint32_t position, uint32_t length) {
    constexpr uint32_t BITS = sizeof(T) * 8;
    position &= 255;
    length &= 255;
    for (uint32_t i = 0; i < length && position + i < BITS; ++i) {
        const T bit = T{1} << (position + i);
        b = (a >> i & 1) ? b | bit : b & ~bit;
    }
    return b;
}

template <class T, bool SHIFT_AMOUNT>
uint32_t leading(T a) {
    using U = std::make_unsigned_t<T>;
    constexpr int BITS = sizeof(T) * 8;
    U bits = static_cast<U>(a);
    if (std::is_signed_v<T> && a < 0) bits = static_cast<U>(~bits);
    if (bits == 0) return UINT32_MAX;
    const int at = BITS - 1 - (BITS == 32 ? __builtin_clz(static_cast<uint32_t>(bits)) : __builtin_clzll(bits));
    return static_cast<uint32_t>(SHIFT_AMOUNT ? BITS - 1 - at : at);
}

template <class T>
void add_fields(Forms& forms, const std::string& type) {
    each<T(T, uint32_t, uint32_t)>(forms, "bfe." + type, [](T a, uint32_t p, uint32_t n) { return extract<T>(a, p, n); });
    each<uint32_t(T)>(forms, "bfind." + type, [](T a) { return leading<T, false>(a); });
    each<uint32_t(T)>(forms, "bfind.shiftamt." + type, [](T a) { return leading<T, true>(a); });
}

uint64_t reverse(uint64_t a, int bits) {
    uint64_t result = 0;
    for (int i = 0; i < bits; ++i) result |= (a >> i & 1) << (bits - 1 - i);
    return result;
}

// Each selector's low three bits pick a byte of b:a, its fourth the byte's sign instead.
uint32_t permute(uint32_t a, uint32_t b, uint32_t selectors) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t select = selectors >> i * 4 & 15;
        uint32_t byte = static_cast<uint32_t>(both >> (select & 7) * 8) & 0xff;
        if (select & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << i * 8;
    }
    return result;
}

uint32_t any_logic(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (int i = 0; i < 8; ++i) {
        if (!(table >> i & 1)) continue;
        result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return result;
}

template <bool LEFT, bool WRAP>
uint32_t funnel(uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t n = WRAP ? c & 31 : c > 32 ? 32 : c;
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    return static_cast<uint32_t>(LEFT ? (both << n) >> 32 : both >> n);
}

}  // namespace

void add_bits(Forms& forms) {
    add_logic<uint16_t>(forms, "b16");
    add_logic<uint32_t>(forms, "b32");
    add_logic<uint64_t>(forms, "b64");
    each<bool(bool, bool)>(forms, "and.pred", [](bool a, bool b) { return a && b; });
    each<bool(bool, bool)>(forms, "or.pred", [](bool a, bool b) { return a || b; });
    each<bool(bool, bool)>(forms, "xor.pred", [](bool a, bool b) { return a != b; });
    each<bool(bool)>(forms, "not.pred", [](bool a) { return !a; });
    for (const char* type : {"b16", "u16"}) add_right_shift<uint16_t>(forms, type);
    for (const char* type : {"b32", "u32"}) add_right_shift<uint32_t>(forms, type);
    for (const char* type : {"b64", "u64"}) add_right_shift<uint64_t>(forms, type);
    add_right_shift<int16_t>(forms, "s16");
    add_right_shift<int32_t>(forms, "s32");
    add_right_shift<int64_t>(forms, "s64");
    add_fields<uint32_t>(forms, "u32");
    add_fields<int32_t>(forms, "s32");
    add_fields<uint64_t>(forms, "u64");
    add_fields<int64_t>(forms, "s64");
    each<uint32_t(uint32_t, uint32_t, uint32_t, uint32_t)>(forms, "bfi.b32", [](uint32_t a, uint32_t b, uint32_t p, uint32_t n) { return insert<uint32_t>(a, b, p, n); });
    each<uint64_t(uint64_t, uint64_t, uint32_t, uint32_t)>(forms, "bfi.b64", [](uint64_t a, uint64_t b, uint32_t p, uint32_t n) { return insert<uint64_t>(a, b, p, n); });
    each<uint32_t(uint32_t)>(forms, "brev.b32", [](uint32_t a) { return static_cast<uint32_t>(reverse(a, 32)); });
    each<uint64_t(uint64_t)>(forms, "brev.b64", [](uint64_t a) { return reverse(a, 64); });
    each<uint32_t(uint32_t)>(forms, "clz.b32", [](uint32_t a) { return a == 0 ? 32u : static_cast<uint32_t>(__builtin_clz(a)); });
    each<uint32_t(uint64_t)>(forms, "clz.b64", [](uint64_t a) { return a == 0 ? 64u : static_cast<uint32_t>(__builtin_clzll(a)); });
    each<uint32_t(uint32_t)>(forms, "popc.b32", [](uint32_t a) { return static_cast<uint32_t>(__builtin_popcount(a)); });
    each<uint32_t(uint64_t)>(forms, "popc.b64", [](uint64_t a) { return static_cast<uint32_t>(__builtin_popcountll(a)); });
    each<uint32_t(uint32_t, uint32_t, uint32_t)>(forms, "prmt.b32", [](uint32_t a, uint32_t b, uint32_t c) { return permute(a, b, c); });
    each<uint32_t(uint32_t, uint32_t, uint32_t, uint32_t)>(forms, "lop3.b32", [](uint32_t a, uint32_t b, uint32_t c, uint32_t t) { return any_logic(a, b, c, t); });
    each<uint32_t(uint32_t, uint32_t, uint32_t)>(forms, "shf.l.wrap.b32", [](uint32_t a, uint32_t b, uint32_t c) { return funnel<true, true>(a, b, c); });
    each<uint32_t(uint32_t, uint32_t, uint32_t)>(forms, "shf.l.clamp.b32", [](uint32_t a, uint32_t b, uint32_t c) { return funnel<true, false>(a, b, c); });
    each<uint32_t(uint32_t, uint32_t, uint32_t)>(forms, "shf.r.wrap.b32", [](uint32_t a, uint32_t b, uint32_t c) { return funnel<false, true>(a, b, c); });
    each<uint32_t(uint32_t, uint32_t, uint32_t)>(forms, "shf.r.clamp.b32", [](uint32_t a, uint32_t b, uint32_t c) { return funnel<false, false>(a, b, c); });
}

}  // namespace vgpu
