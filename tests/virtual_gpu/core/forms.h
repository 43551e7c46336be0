// Every instruction form that the machine runs, by its whole text: "add.s32", "ld.global.nc.v4.f32". Nothing is matched
// by prefix: a modifier that is not in the table makes loading fail with its name.
//
// The operands of a form are spelled: P H W D a destination (predicate, 16, 32, 64 bits), p h w d a source, n a
// predicate that may be negated, i an integer literal, @ an address, a digit before a letter a vector in braces,
// | between two destinations. "W|Pwww" is shfl's.
#pragma once

#include <atomic>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "program.h"

namespace vgpu {

struct Form {
    std::string operands;
    Handler full, masked;
    Flow flow;
    uint8_t members = EVERYONE;  // of a collective: which operand is the membermask
    mutable bool used = false;
    void use() const { std::atomic_ref(used).store(true, std::memory_order_relaxed); }  // a module takes it
};

class Forms {
public:
    static const Forms& all();  // made at the first call
    const std::vector<Form>* find(const std::string& name) const;
    // Every form, a line each: "add.s32 Www 1", where 1 says that a module of this process used it.
    std::string list() const;
    // Views, and text(), because there are thousands of calls: strings in each took most of the compiler's time.
    void add(std::string_view name, std::string_view operands, Handler full, Handler masked, Flow flow = Flow::next);
    void add(std::string_view name, std::string_view operands, Handler both, Flow flow = Flow::next) {
        add(name, operands, both, both, flow);
    }
    // An instruction that lanes execute together: those of the membermask, or all of the warp.
    void add_collective(std::string_view name, std::string_view operands, Handler both, uint8_t members = EVERYONE) {
        add(name, operands, both, both, Flow::collective);
        forms_[std::string(name)].back().members = members;
    }

private:
    Forms();
    std::unordered_map<std::string, std::vector<Form>> forms_;
};

std::string text(std::initializer_list<std::string_view> pieces);  // one after the other

// The families, one file each.
void add_moves(Forms& forms);
void add_integers(Forms& forms);
void add_bits(Forms& forms);
void add_comparisons(Forms& forms);
void add_floats(Forms& forms);
void add_halves(Forms& forms);
void add_conversions(Forms& forms);
void add_loads(Forms& forms);
void add_stores(Forms& forms);
void add_atomics(Forms& forms);
void add_async_copies(Forms& forms);
void add_matrices(Forms& forms);
void add_warp_wide(Forms& forms);
void add_control(Forms& forms);
void add_system_calls(Forms& forms);

}  // namespace vgpu
