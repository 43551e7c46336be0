// ld: PTX ISA 8.5, section 9.7.9.8, as NVRTC spells it: the memory-order and prefetch words that it never writes are not in
// the table. This machine has one memory and no caches, so a cache operator or .volatile changes nothing.
#include <cstring>

#include "access.h"
#include "lanes.h"

namespace vgpu {

namespace {

// T as it lies in memory, R as the register holds it: narrow integers are extended by T's sign.
template <class T, int V, class R>
[[gnu::noinline]] void spread(Warp& warp, const Op& op, uint32_t mask, const uint8_t* const* from) {
    R* to[V];
    for (int v = 0; v < V; ++v) to[v] = lanes<R>(warp, op.at[v]);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        T values[V];
        std::memcpy(values, from[l], sizeof values);
        for (int v = 0; v < V; ++v) to[v][l] = static_cast<R>(values[v]);
    }
}

template <Space SPACE, class T, int V, class R>
void load(Warp& warp, const Op& op, uint32_t mask) {
    uint8_t* from[LANES];  // all of them first: the base register may be one of the destinations
    find_bytes<SPACE, sizeof(T) * V, Use::read>(warp, op, mask, V, from);
    spread<T, V, R>(warp, op, mask, from);
}

// One register, two, four (where it is not null) of this kind.
void add_vectors(Forms& forms, std::string_view head, std::string_view type, char kind, Handler one, Handler two, Handler four) {
    const std::string_view letter(&kind, 1);
    forms.add(text({head, ".", type}), text({letter, "@"}), one);
    forms.add(text({head, ".v2.", type}), text({"2", letter, "@"}), two);
    if (four != nullptr) forms.add(text({head, ".v4.", type}), text({"4", letter, "@"}), four);
}

template <Space SPACE, class T, class R>
void add_vectors_of(Forms& forms, std::string_view head, std::string_view type) {
    Handler four = nullptr;
    if constexpr (sizeof(T) <= 4) four = &load<SPACE, T, 4, R>;
    add_vectors(forms, head, type, upper<R>(), &load<SPACE, T, 1, R>, &load<SPACE, T, 2, R>, four);
}

// A register may be wider than the type, one of a vector is not.
template <Space SPACE, class T, class Wider>
void add_wider(Forms& forms, std::string_view head, std::string_view type) {
    constexpr char operands[] = {upper<Wider>(), '@', 0};
    if constexpr (sizeof(Wider) > sizeof(T) && sizeof(Wider) > 2) forms.add(text({head, ".", type}), operands, &load<SPACE, T, 1, Wider>);
}

template <Space SPACE, class T>
void add_type(Forms& forms, std::string_view head, std::string_view type) {
    using Least = std::conditional_t<std::is_signed_v<T>, std::make_signed_t<Raw<T>>, Raw<T>>;
    add_vectors_of<SPACE, T, Least>(forms, head, type);
    add_wider<SPACE, T, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>>(forms, head, type);
    add_wider<SPACE, T, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(forms, head, type);
}

template <Space SPACE>
void add_space(Forms& forms, std::string_view head) {
    for (const char* type : {"b8", "u8"}) add_type<SPACE, uint8_t>(forms, head, type);
    add_type<SPACE, int8_t>(forms, head, "s8");
    for (const char* type : {"b16", "u16"}) add_type<SPACE, uint16_t>(forms, head, type);
    add_type<SPACE, int16_t>(forms, head, "s16");
    for (const char* type : {"b32", "u32", "f32"}) add_type<SPACE, uint32_t>(forms, head, type);
    add_type<SPACE, int32_t>(forms, head, "s32");
    for (const char* type : {"b64", "u64", "s64", "f64"}) add_type<SPACE, uint64_t>(forms, head, type);
}

// .param variables of a call, which lie in the thread's frame.
template <class T, int V, class R>
void load_argument(Warp& warp, const Op& op, uint32_t mask) {
    const uint32_t size = warp.block->grid.program.frame_bytes;
    const uint64_t at = in_frame(op, sizeof(T) * V, mask);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        T values[V];
        std::memcpy(values, warp.parameters.data() + static_cast<size_t>(l) * size + at, sizeof values);
        for (int v = 0; v < V; ++v) lanes<R>(warp, op.at[v])[l] = static_cast<R>(values[v]);
    }
}

template <class T, class R>
void add_argument(Forms& forms, std::string_view type) {
    Handler four = nullptr;
    if constexpr (sizeof(T) <= 4) four = &load_argument<T, 4, R>;
    add_vectors(forms, "(load argument)", type, upper<R>(), &load_argument<T, 1, R>, &load_argument<T, 2, R>, four);
}

}  // namespace

void add_loads(Forms& forms) {
    for (const char* head : {"ld", "ld.volatile"}) add_space<Space::generic>(forms, head);
    for (const char* head : {"ld.global", "ld.volatile.global", "ld.global.nc", "ld.global.ca", "ld.global.cg", "ld.global.cs",
                             "ld.global.lu", "ld.global.cv"})
        add_space<Space::global>(forms, head);
    for (const char* head : {"ld.shared", "ld.volatile.shared"}) add_space<Space::shared>(forms, head);
    add_space<Space::global>(forms, "ld.const");
    add_space<Space::local>(forms, "ld.local");
    add_space<Space::parameter>(forms, "ld.param");
    for (const char* type : {"b8", "u8"}) {
        add_argument<uint8_t, uint16_t>(forms, type);
        add_argument<uint8_t, uint32_t>(forms, type);
    }
    add_argument<int8_t, int16_t>(forms, "s8");
    add_argument<int8_t, int32_t>(forms, "s8");
    for (const char* type : {"b16", "u16", "s16"}) add_argument<uint16_t, uint16_t>(forms, type);
    for (const char* type : {"b32", "u32", "s32", "f32"}) add_argument<uint32_t, uint32_t>(forms, type);
    for (const char* type : {"b64", "u64", "s64", "f64"}) add_argument<uint64_t, uint64_t>(forms, type);
}

}  // namespace vgpu
