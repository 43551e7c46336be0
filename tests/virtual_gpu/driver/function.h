// Functions of loaded modules and what a launch of one must satisfy.
//
// Callers: modules, launches, occupancy. Invariant: a function found here keeps its module loaded while it is held.
#pragma once

#include "context.h"

namespace vgpu {

// Compute capability 8.7 (CUDA C++ Programming Guide, technical specifications).
constexpr int SHARED_DEFAULT = 48 << 10;  // of a block, without asking for more
constexpr int SHARED_OPT_IN = 163 << 10;  // of a block, at most
constexpr int SHARED_MULTIPROCESSOR = 164 << 10;
constexpr int SHARED_RESERVED = 1 << 10;  // of each block, by the system
constexpr int REGISTERS = 65536;
constexpr int WARPS = 48;
constexpr int BLOCKS = 16;
constexpr int THREADS_OF_BLOCK = 1024;
constexpr int PARAMETER_BYTES = 4096;

struct FunctionHold {
    Function* function = nullptr;
    std::shared_ptr<LoadedModule> module;
};
FunctionHold find_function(const Driver& state, CUfunction handle);

// Registers that a warp takes: rounded up to 8 a thread (allocation unit of 256 a warp).
inline int registers_of_warp(const Kernel& kernel) { return (static_cast<int>(kernel.registers) + 7) / 8 * 8 * 32; }
// The largest block that .maxntid and the register file allow.
int threads_limit(const Kernel& kernel);

struct Shape {
    std::array<uint32_t, 3> grid{1, 1, 1}, block{1, 1, 1};
    uint32_t shared = 0;
};
// The result code of the real driver for a launch that cannot be.
CUresult check_shape(const Function& function, const Shape& shape);
// Puts a launch into a stream; `parameters` holds all the kernel's parameter bytes.
CUresult launch(Call& call, const FunctionHold& hold, const Shape& shape, std::vector<uint8_t> parameters,
                CUstream stream);

}  // namespace vgpu
