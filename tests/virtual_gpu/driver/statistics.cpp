// Counting and its JSON form (statistics.h). Invariant: one object whose keys are always all there.
#include "statistics.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

namespace vgpu {

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        if (static_cast<unsigned char>(c) >= 0x20) {
            out += c;
            continue;
        }
        char escape[8];
        snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned char>(c));
        out += escape;
    }
    return out + '"';
}

void Statistics::single_launch() {
    const std::lock_guard lock(mutex_);
    ++single_launches_;
    if (graph_launches_) ++single_launches_after_graph_;
}

void Statistics::graph_launch() {
    const std::lock_guard lock(mutex_);
    ++graph_launches_;
}

void Statistics::copy(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    ++copies_;
    copied_bytes_ += bytes;
}

void Statistics::fault(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (faults_.size() < 100) faults_.push_back(text);
}

void Statistics::kernel_run(const std::string& name, bool in_graph, const Counters& counters) {
    const std::lock_guard lock(mutex_);
    PerKernel& kernel = kernels_[name];
    ++(in_graph ? kernel.in_graphs : kernel.single);
    kernel.counters.add(counters);
}

void Statistics::memory_used(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    peak_memory_bytes_ = std::max(peak_memory_bytes_, bytes);
}

void Statistics::reset() {
    const std::lock_guard lock(mutex_);
    single_launches_ = graph_launches_ = single_launches_after_graph_ = copies_ = copied_bytes_ = peak_memory_bytes_ =
        0;
    faults_.clear();
    kernels_.clear();
}

std::string Statistics::json() const {
    const std::lock_guard lock(mutex_);
    std::ostringstream out;
    out << "{\"pid\": " << getpid() << ", \"single_launches\": " << single_launches_
        << ", \"graph_launches\": " << graph_launches_
        << ", \"single_launches_after_graph\": " << single_launches_after_graph_ << ", \"copies\": " << copies_
        << ", \"copied_bytes\": " << copied_bytes_ << ", \"peak_memory_bytes\": " << peak_memory_bytes_
        << ", \"faults\": [";
    for (size_t i = 0; i < faults_.size(); ++i) out << (i ? ", " : "") << quoted(faults_[i]);
    out << "], \"kernels\": {";
    Counters total;
    const char* separator = "";
    for (const auto& [name, kernel] : kernels_) {
        out << separator << quoted(name) << ": {\"single\": " << kernel.single
            << ", \"in_graphs\": " << kernel.in_graphs << ", \"counters\": " << kernel.counters.json() << "}";
        total.add(kernel.counters);
        separator = ", ";
    }
    out << "}, \"counters\": " << total.json() << "}";
    return out.str();
}

}  // namespace vgpu
