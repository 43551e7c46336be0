// mov, cvta, isspacep, clocks: PTX ISA 8.5, section 9.7.9.
#include <chrono>

#include "access.h"
#include "lanes.h"

namespace vgpu {

namespace {

template <class Wide, class Narrow, int N>
void pack(Warp& warp, const Op& op, uint32_t mask) {
    Wide* to = lanes<Wide>(warp, op.at[0]);
    for (int l = 0; l < LANES; ++l) {
        if (!(mask >> l & 1)) continue;
        Wide value = 0;
        for (int n = 0; n < N; ++n) value |= static_cast<Wide>(lanes<Narrow>(warp, op.at[n + 1])[l]) << (n * sizeof(Narrow) * 8);
        to[l] = value;
    }
}

template <class Wide, class Narrow, int N>
void unpack(Warp& warp, const Op& op, uint32_t mask) {
    for (int l = 0; l < LANES; ++l) {
        if (!(mask >> l & 1)) continue;
        const Wide value = lanes<Wide>(warp, op.at[N])[l];
        for (int n = 0; n < N; ++n) lanes<Narrow>(warp, op.at[n])[l] = static_cast<Narrow>(value >> (n * sizeof(Narrow) * 8));
    }
}

template <Space SPACE>
void is_space(Warp& warp, const Op& op, uint32_t mask) {
    for (int l = 0; l < LANES; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint64_t window = lanes<uint64_t>(warp, op.at[1])[l] & WINDOW_MASK;
        const bool is = SPACE == Space::shared ? window == SHARED_WINDOW : SPACE == Space::local ? window == LOCAL_WINDOW
                      : SPACE == Space::parameter ? window == PARAMETER_WINDOW : window == 0;
        lanes<int32_t>(warp, op.at[0])[l] = -static_cast<int32_t>(is);
    }
}

// Counts a warp's instructions: a clock that moves, not one that measures.
template <class T>
void clock(Warp& warp, const Op& op, uint32_t mask) {
    for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1) lanes<T>(warp, op.at[0])[l] = static_cast<T>(warp.executed);
}

void timer(Warp& warp, const Op& op, uint32_t mask) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto ns = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1) lanes<uint64_t>(warp, op.at[0])[l] = ns;
}

template <uint64_t WINDOW>
void add_window(Forms& forms, const std::string& space) {
    each<uint64_t(uint64_t)>(forms, "cvta." + space + ".u64", [](uint64_t a) { return a | WINDOW; });
    each<uint64_t(uint64_t)>(forms, "cvta.to." + space + ".u64", [](uint64_t a) { return a & ~WINDOW_MASK; });
}

}  // namespace

void add_moves(Forms& forms) {
    for (const char* type : {"b16", "u16", "s16"})
        each<uint16_t(uint16_t)>(forms, std::string("mov.") + type, [](uint16_t a) { return a; });
    for (const char* type : {"b32", "u32", "s32", "f32"})
        each<uint32_t(uint32_t)>(forms, std::string("mov.") + type, [](uint32_t a) { return a; });
    for (const char* type : {"b64", "u64", "s64", "f64"})
        each<uint64_t(uint64_t)>(forms, std::string("mov.") + type, [](uint64_t a) { return a; });
    each<bool(bool)>(forms, "mov.pred", [](bool a) { return a; });
    forms.add("mov.b32", "W2h", &pack<uint32_t, uint16_t, 2>);
    forms.add("mov.b32", "2Hw", &unpack<uint32_t, uint16_t, 2>);
    forms.add("mov.b64", "D2w", &pack<uint64_t, uint32_t, 2>);
    forms.add("mov.b64", "2Wd", &unpack<uint64_t, uint32_t, 2>);
    forms.add("mov.b64", "D4h", &pack<uint64_t, uint16_t, 4>);
    forms.add("mov.b64", "4Hd", &unpack<uint64_t, uint16_t, 4>);
    forms.add("mov.u32 %clock", "W", &clock<uint32_t>);
    forms.add("mov.u64 %clock64", "D", &clock<uint64_t>);
    forms.add("mov.u64 %globaltimer", "D", &timer);
    add_window<SHARED_WINDOW>(forms, "shared");
    add_window<LOCAL_WINDOW>(forms, "local");
    add_window<PARAMETER_WINDOW>(forms, "param");
    for (const char* name : {"cvta.global.u64", "cvta.to.global.u64", "cvta.const.u64", "cvta.to.const.u64"})
        each<uint64_t(uint64_t)>(forms, name, [](uint64_t a) { return a; });
    forms.add("isspacep.shared", "Pd", &is_space<Space::shared>);
    forms.add("isspacep.local", "Pd", &is_space<Space::local>);
    forms.add("isspacep.param", "Pd", &is_space<Space::parameter>);
    forms.add("isspacep.global", "Pd", &is_space<Space::global>);
}

}  // namespace vgpu
