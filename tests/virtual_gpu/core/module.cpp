// Module: text, variables in memory, decoded kernels. See machine.h.
#include <algorithm>
#include <cstring>

#include "decode.h"
#include "limits.h"
#include "syntax.h"

namespace vgpu {

namespace {

[[noreturn]] void refuse(uint32_t line, const std::string& what) {
    throw LoadError(ERROR_INVALID_PTX, "PTX line " + std::to_string(line) + ": " + what);
}

}  // namespace

Module::Module(const std::string& ptx, Memory& memory) : memory_(memory) {
    const Text text = parse(ptx);
    version = text.version;
    if (version < 60 || version > 90)
        throw LoadError(ERROR_UNSUPPORTED_PTX_VERSION, "PTX version " + std::to_string(version / 10) + "." +
                        std::to_string(version % 10) + " is not one of 6.0 to 9.0");
    try {
        uint64_t constant_bytes = 0;
        for (const auto& [name, declared] : text.variables) {
            if (declared.space == ".shared") continue;
            const bool constant = declared.space == ".const";
            constant_bytes += constant ? declared.bytes : 0;
            if (constant_bytes > CONSTANT_BYTES)
                refuse(declared.line, name + " is one variable too many: a module has " + std::to_string(CONSTANT_BYTES) + " bytes of .const");
            if (declared.align > MODULE_ALIGNMENT)
                refuse(declared.line, name + ": this machine aligns no more than to " + std::to_string(MODULE_ALIGNMENT) + " bytes");
            const uint64_t at = memory.allocate(declared.bytes, constant ? Kind::constant : Kind::module);
            if (at == 0) throw LoadError(ERROR_OUT_OF_MEMORY, "no memory for variable " + name);
            variables_[name] = {at, declared.bytes};
            // variables start as zero where the text gives no value (PTX ISA 8.5, section 5.4.4)
            std::memset(reinterpret_cast<void*>(at), 0, declared.bytes);
            for (const auto& [offset, bits] : declared.initial)
                std::memcpy(reinterpret_cast<void*>(at + offset), &bits, std::min<size_t>(declared.scalar, sizeof bits));
            memory.mark(at, declared.bytes);
        }
        for (const auto& [name, declared] : text.variables)
            for (const auto& [offset, other] : declared.addresses) {
                const auto found = variables_.find(other);
                if (found == variables_.end()) refuse(declared.line, "there is no variable " + other);
                std::memcpy(reinterpret_cast<void*>(variables_.at(name).address + offset), &found->second.address, 8);
            }
        for (const Function& function : text.functions)
            if (function.entry && function.has_body) kernels_.emplace(function.name, decode(text, function, variables_));
    } catch (...) {
        for (const auto& [name, variable] : variables_) memory_.free(variable.address);
        throw;
    }
}

Module::~Module() {
    for (const auto& [name, variable] : variables_) memory_.free(variable.address);
}

const Kernel* Module::kernel(const std::string& name) const {
    const auto found = kernels_.find(name);
    return found == kernels_.end() ? nullptr : &found->second;
}

const Variable* Module::variable(const std::string& name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? nullptr : &found->second;
}

bool Module::owns(uint64_t address) const {
    return std::any_of(variables_.begin(), variables_.end(), [address](const auto& entry) { return entry.second.address == address; });
}

}  // namespace vgpu
