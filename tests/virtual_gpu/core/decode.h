// From statements to a Program. Caller: Module.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "machine.h"
#include "program.h"
#include "syntax.h"

namespace vgpu {

// One instruction before its registers have places: `registers` are the virtual ones, by operand.
struct Draft {
    Op op;
    std::vector<int> registers;   // virtual register of op.at[i], -1 where the operand has none
    std::vector<bool> written;    // whether the operand is a destination
    int guard = -1;               // virtual register
    std::string label;            // branch target, callee
};

struct VirtualRegister {
    uint32_t bytes;               // a lane: 2, 4 or 8
    int constant;                 // index into Program::constants, or -1
    bool data;                    // counts as a register of the kernel (no predicate, no constant)
};

// Gives every virtual register of one function a place in the register file from `from` on, by linear scan over its
// live ranges; writes them into the drafts' ops. Returns the first byte behind; `pressure` becomes the largest number of
// 32-bit registers alive at once. Leaders and branch targets must be set. `first` is the index of drafts[0] in the program.
uint32_t allocate_registers(std::vector<Draft>& drafts, uint32_t first, const std::vector<VirtualRegister>& registers,
                            std::vector<Constant>& constants, const std::vector<std::vector<uint32_t>>& tables,
                            uint32_t from, uint32_t& pressure);

// Decodes kernel `entry` and every function it calls. `addresses`: the module's global variables. Throws LoadError.
Kernel decode(const Text& text, const Function& entry, const std::map<std::string, Variable>& addresses);

}  // namespace vgpu
