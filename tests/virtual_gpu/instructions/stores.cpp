// st: PTX ISA 8.5, section 9.7.9.11, as NVRTC spells it (see loads.cpp).
#include <cstring>

#include "access.h"
#include "lanes.h"

namespace vgpu {

namespace {

template <class T, int V, class R>
[[gnu::noinline]] void collect(Warp& warp, const Op& op, uint32_t mask, uint8_t* const* to) {
    const R* from[V];
    for (int v = 0; v < V; ++v) from[v] = lanes<R>(warp, op.at[v + 1]);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        T values[V];
        for (int v = 0; v < V; ++v) values[v] = static_cast<T>(from[v][l]);
        std::memcpy(to[l], values, sizeof values);
    }
}

template <Space SPACE, class T, int V, class R>
void store_lanes(Warp& warp, const Op& op, uint32_t mask) {
    uint8_t* to[LANES];
    find_bytes<SPACE, sizeof(T) * V, Use::write>(warp, op, mask, 0, to);
    collect<T, V, R>(warp, op, mask, to);
}

// One register, two, four (where it is not null) of this kind.
void add_vectors(Forms& forms, std::string_view head, std::string_view type, char kind, Handler one, Handler two, Handler four) {
    const std::string_view letter(&kind, 1);
    forms.add(text({head, ".", type}), text({"@", letter}), one);
    forms.add(text({head, ".v2.", type}), text({"@2", letter}), two);
    if (four != nullptr) forms.add(text({head, ".v4.", type}), text({"@4", letter}), four);
}

template <Space SPACE, class T, class R>
void add_vectors_of(Forms& forms, std::string_view head, std::string_view type) {
    Handler four = nullptr;
    if constexpr (sizeof(T) <= 4) four = &store_lanes<SPACE, T, 4, R>;
    add_vectors(forms, head, type, letter<R>(), &store_lanes<SPACE, T, 1, R>, &store_lanes<SPACE, T, 2, R>, four);
}

// A register may be wider than the type, one of a vector is not.
template <Space SPACE, class T>
void add_type(Forms& forms, std::string_view head, std::string_view type) {
    add_vectors_of<SPACE, T, Raw<T>>(forms, head, type);
    if constexpr (sizeof(T) <= 2) forms.add(text({head, ".", type}), "@w", &store_lanes<SPACE, T, 1, uint32_t>);
    if constexpr (sizeof(T) <= 4) forms.add(text({head, ".", type}), "@d", &store_lanes<SPACE, T, 1, uint64_t>);
}

template <Space SPACE>
void add_space(Forms& forms, std::string_view head) {
    for (const char* type : {"b8", "u8", "s8"}) add_type<SPACE, uint8_t>(forms, head, type);
    for (const char* type : {"b16", "u16", "s16"}) add_type<SPACE, uint16_t>(forms, head, type);
    for (const char* type : {"b32", "u32", "s32", "f32"}) add_type<SPACE, uint32_t>(forms, head, type);
    for (const char* type : {"b64", "u64", "s64", "f64"}) add_type<SPACE, uint64_t>(forms, head, type);
}

template <class T, int V, class R>
void store_argument(Warp& warp, const Op& op, uint32_t mask) {
    const uint32_t size = warp.block->grid.program.frame_bytes;
    const uint64_t at = in_frame(op, sizeof(T) * V, mask);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        T values[V];
        for (int v = 0; v < V; ++v) values[v] = static_cast<T>(lanes<R>(warp, op.at[v + 1])[l]);
        std::memcpy(warp.parameters.data() + static_cast<size_t>(l) * size + at, values, sizeof values);
    }
}

template <class T, class R>
void add_argument(Forms& forms, std::string_view type) {
    Handler four = nullptr;
    if constexpr (sizeof(T) <= 4) four = &store_argument<T, 4, R>;
    add_vectors(forms, "(store argument)", type, letter<R>(), &store_argument<T, 1, R>, &store_argument<T, 2, R>, four);
}

}  // namespace

void add_stores(Forms& forms) {
    for (const char* head : {"st", "st.volatile"}) add_space<Space::generic>(forms, head);
    for (const char* head : {"st.global", "st.volatile.global", "st.global.wb", "st.global.cg", "st.global.cs", "st.global.wt"})
        add_space<Space::global>(forms, head);
    for (const char* head : {"st.shared", "st.volatile.shared"}) add_space<Space::shared>(forms, head);
    add_space<Space::local>(forms, "st.local");
    for (const char* type : {"b8", "u8", "s8"}) {
        add_argument<uint8_t, uint16_t>(forms, type);
        add_argument<uint8_t, uint32_t>(forms, type);
    }
    for (const char* type : {"b16", "u16", "s16"}) add_argument<uint16_t, uint16_t>(forms, type);
    for (const char* type : {"b32", "u32", "s32", "f32"}) add_argument<uint32_t, uint32_t>(forms, type);
    for (const char* type : {"b64", "u64", "s64", "f64"}) add_argument<uint64_t, uint64_t>(forms, type);
}

}  // namespace vgpu
