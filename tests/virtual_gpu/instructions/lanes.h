// Makes the handler of an instruction that treats every lane alike from a function of one lane.
//
//   each<int32_t(int32_t, int32_t)>(forms, "add.s32", [](int32_t a, int32_t b) { return a + b; });
//
// The result is the first operand, the arguments follow. bool stands for a predicate. The loops are written so that the
// compiler vectorises them: a register that is both source and destination is read and written at the same lane only.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../core/forms.h"
#include "../core/warp.h"

namespace vgpu {

template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, int32_t, T>;

template <class T>
constexpr char letter() {
    if constexpr (std::is_same_v<T, bool>) return 'p';
    else if constexpr (sizeof(T) == 2) return 'h';
    else if constexpr (sizeof(T) == 4) return 'w';
    else return 'd';
}

template <class T>
constexpr char upper() { return static_cast<char>(letter<T>() - 'a' + 'A'); }  // of a destination

template <class T>
inline Stored<T> store(T value) {
    if constexpr (std::is_same_v<T, bool>) return -static_cast<int32_t>(value);
    else return value;
}

template <class T>
inline T load(Stored<T> value) {
    if constexpr (std::is_same_v<T, bool>) return value != 0;
    else return value;
}

// A register of T's size, bit for bit.
template <class T>
using Raw = std::conditional_t<sizeof(T) <= 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

// The masked handler of all of them: the instruction runs in every lane, then the others get back what they had. One
// for each size of the result, so that an instruction is compiled once.
template <class T>
void keep_others(Warp& warp, const Op& op, uint32_t mask) {
    T* to = lanes<T>(warp, op.at[0]);
    T held[LANES];
    std::memcpy(held, to, sizeof held);
    op.full(warp, op, mask);
    for (int l = 0; l < LANES; ++l) to[l] = warp.on[l] ? to[l] : held[l];
}

template <class Signature>
struct Each;

template <class R, class... A>
struct Each<R(A...)> {
    using Result = R;
    // The pointers are arguments, so that a store to a lane is not taken for a change of where the registers are.
    template <class F>
    static void loop(Stored<R>* to, const Stored<A>*... from) {
#pragma GCC ivdep
        for (int l = 0; l < LANES; ++l) to[l] = store<R>(F{}(load<A>(from[l])...));
    }
    template <class F, size_t... I>
    static void spread(Warp& warp, const Op& op, std::index_sequence<I...>) {
        loop<F>(lanes<Stored<R>>(warp, op.at[0]), lanes<Stored<A>>(warp, op.at[I + 1])...);
    }
    template <class F>
    static void run(Warp& warp, const Op& op, uint32_t) {
        spread<F>(warp, op, std::index_sequence_for<A...>{});
    }
    static std::string operands() {
        return {upper<R>(), letter<A>()...};
    }
};

template <class Signature, class F>
void each(Forms& forms, std::string_view name, F) {
    using Made = Each<Signature>;
    forms.add(name, Made::operands(), &Made::template run<F>, &keep_others<Raw<Stored<typename Made::Result>>>);
}

}  // namespace vgpu
