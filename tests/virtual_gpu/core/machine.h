// What the driver sees of the machine that runs PTX: load a module, look up a kernel, run a launch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "counters.h"
#include "memory.h"

namespace vgpu {

// CUresult values that loading and running can end with; names and numbers of cuda.h.
enum Code : int {
    SUCCESS = 0,
    ERROR_OUT_OF_MEMORY = 2,
    ERROR_NO_BINARY_FOR_GPU = 209,
    ERROR_INVALID_PTX = 218,
    ERROR_UNSUPPORTED_PTX_VERSION = 222,
    ERROR_ILLEGAL_ADDRESS = 700,
    ERROR_LAUNCH_TIMEOUT = 702,
    ERROR_ASSERT = 710,
    ERROR_MISALIGNED_ADDRESS = 716,
    ERROR_LAUNCH_FAILED = 719,
};

// A module that cannot be loaded; what() names the PTX line and the instruction.
struct LoadError : std::runtime_error {
    LoadError(Code code, const std::string& text) : std::runtime_error(text), code(code) {}
    Code code;
};

struct Parameter {
    uint32_t offset, bytes;
};

struct Program;  // decoded instructions, core/program.h

struct Kernel {
    std::string name;
    std::vector<Parameter> parameters;
    uint32_t parameter_bytes = 0;
    uint32_t static_shared = 0;  // bytes of a block
    uint32_t local_bytes = 0;    // bytes of a thread
    uint32_t max_threads = 1024; // of a block: .maxntid
    std::array<uint32_t, 3> required{0, 0, 0};  // the block's dimensions, where .reqntid says them
    uint32_t registers = 0;      // 32-bit registers alive at once: a lower bound of what ptxas would use, not its figure
    std::shared_ptr<const Program> program;
};

struct Variable {
    uint64_t address, bytes;
};

// A loaded module: kernels, and its .global and .const variables placed in `memory` until it is destroyed.
class Module {
public:
    Module(const std::string& ptx, Memory& memory);  // throws LoadError
    ~Module();
    Module(const Module&) = delete;
    const Kernel* kernel(const std::string& name) const;      // null if there is none
    const Variable* variable(const std::string& name) const;  // null if there is none
    bool owns(uint64_t address) const;                        // one of its variables begins there
    int version = 0;                                          // .version, as 85 for 8.5

private:
    Memory& memory_;
    std::map<std::string, Kernel> kernels_;
    std::map<std::string, Variable> variables_;
};

enum class Order : uint8_t { forward, reverse, random };

// How the warps of a block, and the blocks, take turns; when cp.async writes; what is checked.
struct Options {
    Order order = Order::forward;
    bool deferred_copies = false;  // cp.async writes when it is waited for, else at once
    uint64_t seed = 0;             // for Order::random: a warp runs 1 to 50 instructions, then another
    bool check_races = true;       // shared memory, by barrier
    bool check_initialised = true; // reads of what was never written, shared and device memory
    bool count = false;
    unsigned threads = 2;          // host threads; blocks are shared out among them
    uint64_t instruction_limit = 0; // of a warp; 0: none. Past it the launch ends with ERROR_LAUNCH_TIMEOUT
};

struct Launch {
    const Kernel* kernel = nullptr;
    std::array<uint32_t, 3> grid{1, 1, 1}, block{1, 1, 1};
    uint32_t dynamic_shared = 0;
    std::vector<uint8_t> parameters;  // parameter_bytes of them
};

// code SUCCESS, or the fault with a text that names kernel, PTX line, block, warp, lane and address.
struct Outcome {
    Code code = SUCCESS;
    std::string text;
};

// Runs to the end. Thread-safe; several launches may run at once. `stop` may be set by another thread: the launch then
// ends with ERROR_LAUNCH_FAILED.
Outcome run(const Launch& launch, Memory& memory, const Options& options, Counters& counters,
            const std::atomic<bool>* stop = nullptr);

}  // namespace vgpu
