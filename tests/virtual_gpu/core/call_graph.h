// Which function calls which, to refuse recursion: registers and .param variables have one place a thread, not one a
// call, so a function that calls itself would overwrite its own. Caller: decode.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace vgpu {

class CallGraph {
public:
    // Throws LoadError, which names the way round, if this call closes a cycle.
    void add(const std::string& caller, const std::string& callee, uint32_t line);

private:
    std::map<std::string, std::vector<std::string>> callees_;
};

}  // namespace vgpu
