// See call_graph.h.
#include "call_graph.h"

#include <set>

#include "machine.h"

namespace vgpu {

void CallGraph::add(const std::string& caller, const std::string& callee, uint32_t line) {
    callees_[caller].push_back(callee);
    // depth first from the callee; `before` also tells the way back
    std::map<std::string, std::string> before;
    std::vector<std::string> waiting{callee};
    std::set<std::string> seen{callee};
    while (!waiting.empty()) {
        const std::string now = waiting.back();
        waiting.pop_back();
        if (now == caller) {
            std::string way = caller;
            for (std::string at = now; at != callee; at = before.at(at)) way = before.at(at) + ", which calls " + way;
            throw LoadError(ERROR_INVALID_PTX, "PTX line " + std::to_string(line) + ": " + caller + " calls " + way +
                            ": this machine does not run functions that call themselves");
        }
        for (const std::string& next : callees_[now])
            if (seen.insert(next).second) {
                before[next] = now;
                waiting.push_back(next);
            }
    }
}

}  // namespace vgpu
