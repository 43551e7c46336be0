// What this process asked of the virtual GPU: launches, graph launches, faults, and the machine's counters by kernel.
//
// Callers: launches and graphs count, control.h and the exported virtual_gpu_ functions write. Has its own lock, so
// that it can be written at exit whatever else is going on.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "../core/counters.h"

namespace vgpu {

class Statistics {
public:
    void single_launch();
    void graph_launch();
    void copy(uint64_t bytes);
    void fault(const std::string& text);
    // One kernel that has run, singly or from a graph.
    void kernel_run(const std::string& name, bool in_graph, const Counters& counters);
    void memory_used(uint64_t bytes);
    void reset();
    std::string json() const;

private:
    struct PerKernel {
        uint64_t single = 0, in_graphs = 0;
        Counters counters;
    };
    mutable std::mutex mutex_;
    uint64_t single_launches_ = 0, graph_launches_ = 0, single_launches_after_graph_ = 0, copies_ = 0,
             copied_bytes_ = 0;
    uint64_t peak_memory_bytes_ = 0;
    std::vector<std::string> faults_;
    std::map<std::string, PerKernel> kernels_;
};

// A JSON string, quoted and escaped.
std::string quoted(const std::string& text);

}  // namespace vgpu
