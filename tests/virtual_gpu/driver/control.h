// Fault injection: lines of a file that say what is to go wrong, when, and in which process.
//
// Callers: cuInit (open), launches and allocations (poll, take), the executor (still_held, poll when idle). Does
// nothing unless VIRTUAL_GPU_CONTROL names the file. The file is read again when it changes and must be replaced as a
// whole (rename); one that goes takes its faults with it. cuInit refuses a file that is not there, is no regular file, or
// whose last line does not end; in a file that changes later such text is taken as half-written for a second. A line
// that is not understood ends the process with a message: a test must not pass because its fault was misspelt.
//
//   illegal_address | assert | hang [timeout_ms=T] | bit_flip [bit=B]    launch=N | graph=N [node=K]
//   device_lost [launch=N | graph=N]         without: at once, and cuInit of later processes finds no device
//   out_of_memory allocation=N
//   slow_down factor=F [launch=N | graph=N]  without: every launch
//   write_counters id=WORD                   writes VIRTUAL_GPU_COUNTERS, once for each new word
//
// N counts from 1 since cuInit, or, written +N, since this process first read the line; `launch` counts kernels
// launched singly, `graph` graph launches, whose K-th kernel (default 1) is meant. pid=P restricts a line to one
// process; `once` lets it strike in one process only, the first. A hang ends when its line is removed, or after T ms as
// a time-out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda_api.h"

namespace vgpu {

enum class Target : uint8_t { none, launch, graph, allocation };

struct Rule {
    std::string text, action;
    Target target = Target::none;
    uint64_t n = 0, node = 1;
    bool relative = false, once = false, used = false;
    uint64_t timeout_ms = 0;
    unsigned bit = 0;
    double factor = 1;
    long pid = 0;
};

// What is to happen to one launch.
struct Injection {
    CUresult fault = CUDA_SUCCESS;  // ends with this code instead of running
    std::string text;               // the line that says so
    uint64_t node = 1;              // which kernel of a graph fault and flip mean
    bool flip = false;
    unsigned bit = 0;
    double factor = 1;
    std::string hang;  // the line that holds it back
    uint64_t timeout_ms = 0;
};

class Control {
public:
    // Throws std::invalid_argument if the file cannot be read as a whole or holds a line that is not understood.
    void open(const std::string& path);
    // Reads the file again if it changed; ends the process with a message if a line is not understood.
    void poll();
    // Counts one launch, graph launch or allocation and says what is to happen to it.
    Injection take(Target target);
    bool still_held(const std::string& line);
    // The line `device_lost` without a target, or empty.
    std::string lost() const;
    // True once for each new write_counters line.
    bool counters_wanted();
    bool active() const { return !path_.empty(); }
    uint64_t count(Target target) const { return counts_[static_cast<int>(target)]; }

private:
    std::optional<std::string> read() const;
    void load(const std::string& text);
    bool claim(Rule& rule) const;

    std::string path_, stamp_, half_stamp_;
    int64_t half_since_ns_ = 0;
    std::vector<Rule> rules_;
    uint64_t counts_[4] = {};
};

// One line; throws std::invalid_argument that quotes it.
Rule parse_rule(const std::string& line);

}  // namespace vgpu
