// Makes the handler of an instruction that treats every lane alike from a function of one lane.
//
//   each<int32_t(int32_t, int32_t)>(forms, "add.s32", [](int32_t a, int32_t b) { return a + b; });
//
// The result is the first operand, the arguments follow. bool stands for a predicate. The loops are written so that the
// compiler vectorises them: a register that is both source and destination is read and written at the same lane only.
#pragma once

#include <cstdint>
#include <string>
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
inline Stored<T> store(T value) {
    if constexpr (std::is_same_v<T, bool>) return -static_cast<int32_t>(value);
    else return value;
}

template <class T>
inline T load(Stored<T> value) {
    if constexpr (std::is_same_v<T, bool>) return value != 0;
    else return value;
}

template <class Signature>
struct Each;

template <class R, class... A>
struct Each<R(A...)> {
    // The pointers are arguments, so that a store to a lane is not taken for a change of where the registers are.
    template <bool FULL, class F>
    static void loop(Stored<R>* to, const int32_t* on, const Stored<A>*... from) {
#pragma GCC ivdep
        for (int l = 0; l < LANES; ++l) {
            const Stored<R> value = store<R>(F{}(load<A>(from[l])...));
            if constexpr (FULL) to[l] = value;
            else to[l] = on[l] ? value : to[l];
        }
    }
    template <bool FULL, class F, size_t... I>
    static void spread(Warp& warp, const Op& op, std::index_sequence<I...>) {
        loop<FULL, F>(lanes<Stored<R>>(warp, op.at[0]), warp.on, lanes<Stored<A>>(warp, op.at[I + 1])...);
    }
    template <bool FULL, class F>
    static void run(Warp& warp, const Op& op, uint32_t) {
        spread<FULL, F>(warp, op, std::index_sequence_for<A...>{});
    }
    static std::string operands() {
        std::string text(1, static_cast<char>(letter<R>() - 'a' + 'A'));
        ((text += letter<A>()), ...);
        return text;
    }
};

template <class Signature, class F>
void each(Forms& forms, const std::string& name, F) {
    using Made = Each<Signature>;
    forms.add(name, Made::operands(), &Made::template run<true, F>, &Made::template run<false, F>);
}

}  // namespace vgpu
