// What the environment says about the virtual GPU: its size, how it schedules, what it checks and counts.
//
// Callers: cuInit reads the environment once; virtual_gpu_configure changes a value later. Every variable begins with
// VIRTUAL_GPU_; an unknown one, or a value that is not understood, is refused.
#pragma once

#include <stdexcept>
#include <string>

#include "../core/machine.h"

namespace vgpu {

struct Configuration {
    Options options;                            // handed to the machine with every launch
    uint64_t memory_bytes = uint64_t{8} << 30;  // what cuMemGetInfo calls total
    int driver_version = 12060;                 // CUDA 12.6, JetPack 6
    std::string control_path;                   // faults to inject, control.h
    std::string counters_path;                  // where statistics.h writes; %p becomes the process number
};

// Throws std::invalid_argument that names the variable and what it takes.
void set_variable(Configuration& configuration, const std::string& name, const std::string& value);
Configuration read_environment();

// The newest PTX that a driver of this version takes, as 85 for 8.5 (PTX ISA, release notes).
int newest_ptx(int driver_version);

}  // namespace vgpu
