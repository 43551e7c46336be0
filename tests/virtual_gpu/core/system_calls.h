// The functions that a driver provides to kernels: what they take and give, in bytes of .param variables. Callers:
// decode.cpp, which holds calls against it; instructions/system_calls.cpp runs them. CUDA C++ Programming Guide, formatted
// output and assertions; the compilers declare them so.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace vgpu {

struct Signature {
    std::vector<uint32_t> arguments, results;
};

inline const Signature* system_call_named(const std::string& name) {
    static const std::map<std::string, Signature> known = {
        {"vprintf", {{8, 8}, {4}}},                // format, its arguments
        {"__assertfail", {{8, 8, 4, 8, 8}, {}}}};  // what, file, line, function, bytes of a character
    const auto found = known.find(name);
    return found == known.end() ? nullptr : &found->second;
}

}  // namespace vgpu
