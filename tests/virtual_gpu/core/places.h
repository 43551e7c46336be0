// Where the variables of a kernel, and of the functions that it calls, lie in their spaces: parameters, shared, local, and
// the frame of a thread, which holds the .param variables of calls. Caller: decode.cpp.
//
// Invariant: no space grows past its bound (limits.h); a variable that would is refused with its line.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "operands.h"
#include "syntax.h"

namespace vgpu {

class Places {
public:
    Places(const Text& text, const Function& entry, const std::map<std::string, Variable>& globals);

    // Tells `operands` where everything lies that the statements of `function` may name.
    void name_variables(const Function& function, Operands& operands);
    // The place in the frame of a .param variable, the same for every call: CallGraph refuses recursion.
    Parameter reserve(const Function& function, const std::string& name);
    const Parameter* find(const Function& function, const std::string& name) const;  // null where it is no .param variable
    void write_sizes(Kernel& kernel, Program& program) const;

private:
    void place_parameters();
    void place_shared();

    const Text& text_;
    const Function& entry_;
    const std::map<std::string, Variable>& globals_;
    std::map<std::string, uint64_t> shared_, parameters_;  // shared variables of functions as "function/name"
    std::map<std::string, Parameter> frames_;              // as "function/name"
    std::vector<Parameter> parameter_list_;
    uint64_t parameter_bytes_ = 0, shared_bytes_ = 0, local_ = 0, frame_ = 0;
};

}  // namespace vgpu
