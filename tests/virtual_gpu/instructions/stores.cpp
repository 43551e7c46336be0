// st: PTX ISA 8.5, section 9.7.9.11.
#include <cstring>

#include "access.h"
#include "lanes.h"
#include "spellings.h"

namespace vgpu {

namespace {

template <Space SPACE, class T, int V, class R>
void store_lanes(Warp& warp, const Op& op, uint32_t mask) {
    constexpr unsigned BYTES = sizeof(T) * V;
    if (warp.block->grid.options.count) count_access(warp, op, mask, 0, BYTES, SPACE, Traffic::store);
    Hint hint;
    const R* from[V];
    for (int v = 0; v < V; ++v) from[v] = lanes<R>(warp, op.at[v + 1]);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        T values[V];
        for (int v = 0; v < V; ++v) values[v] = static_cast<T>(from[v][l]);
        std::memcpy(bytes_at<SPACE>(warp, address_of(warp, op, 0, l), BYTES, l, Use::write, hint), values, BYTES);
    }
}

template <Space SPACE, class T, class R>
void add_width(Forms& forms, const std::string& head, const std::string& type) {
    const std::string letter(1, vgpu::letter<R>());
    forms.add(head + "." + type, "@" + letter, &store_lanes<SPACE, T, 1, R>);
    forms.add(head + ".v2." + type, "@2" + letter, &store_lanes<SPACE, T, 2, R>);
    if constexpr (sizeof(T) <= 4) forms.add(head + ".v4." + type, "@4" + letter, &store_lanes<SPACE, T, 4, R>);
}

template <Space SPACE, class T>
void add_type(Forms& forms, const std::string& head, const std::string& type) {
    if constexpr (sizeof(T) <= 2) add_width<SPACE, T, uint16_t>(forms, head, type);
    if constexpr (sizeof(T) <= 4) add_width<SPACE, T, uint32_t>(forms, head, type);
    add_width<SPACE, T, uint64_t>(forms, head, type);
}

template <Space SPACE>
void add_space(Forms& forms, const std::string& head) {
    for (const char* type : {"b8", "u8", "s8"}) add_type<SPACE, uint8_t>(forms, head, type);
    for (const char* type : {"b16", "u16", "s16", "f16"}) add_type<SPACE, uint16_t>(forms, head, type);
    for (const char* type : {"b32", "u32", "s32", "f32"}) add_type<SPACE, uint32_t>(forms, head, type);
    for (const char* type : {"b64", "u64", "s64", "f64"}) add_type<SPACE, uint64_t>(forms, head, type);
}

template <class T, int V, class R>
void store_argument(Warp& warp, const Op& op, uint32_t mask) {
    const uint32_t size = warp.block->grid.program.frame_bytes;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        T values[V];
        for (int v = 0; v < V; ++v) values[v] = static_cast<T>(lanes<R>(warp, op.at[v + 1])[l]);
        std::memcpy(warp.parameters.data() + static_cast<size_t>(l) * size + op.offset[0], values, sizeof values);
    }
}

template <class T, class R>
void add_argument(Forms& forms, const std::string& type) {
    const std::string letter(1, vgpu::letter<R>());
    forms.add("(store argument)." + type, "@" + letter, &store_argument<T, 1, R>);
    forms.add("(store argument).v2." + type, "@2" + letter, &store_argument<T, 2, R>);
    forms.add("(store argument).v4." + type, "@4" + letter, &store_argument<T, 4, R>);
}

}  // namespace

void add_stores(Forms& forms) {
    for (const std::string& head : spellings("st", "", STORE_CACHES)) add_space<Space::generic>(forms, head);
    for (const std::string& head : spellings("st", ".global", STORE_CACHES)) add_space<Space::global>(forms, head);
    for (const char* space : {".shared", ".shared::cta"})
        for (const std::string& head : spellings("st", space, PLAIN)) add_space<Space::shared>(forms, head);
    for (const std::string& head : spellings("st", ".local", PLAIN)) add_space<Space::local>(forms, head);
    for (const char* type : {"b8", "u8", "s8"}) {
        add_argument<uint8_t, uint16_t>(forms, type);
        add_argument<uint8_t, uint32_t>(forms, type);
    }
    for (const char* type : {"b16", "u16", "s16", "f16"}) add_argument<uint16_t, uint16_t>(forms, type);
    for (const char* type : {"b32", "u32", "s32", "f32"}) add_argument<uint32_t, uint32_t>(forms, type);
    for (const char* type : {"b64", "u64", "s64", "f64"}) add_argument<uint64_t, uint64_t>(forms, type);
}

}  // namespace vgpu
