// What a module may ask for. Every count that a module's text gives is held against one of these before anything is made
// of it, so that a wrong number is refused with its line instead of taking the machine's memory.
#pragma once

#include <cstdint>

namespace vgpu {

// As ptxas and the driver's compiler refuse them; of the last two the source is the CUDA C++ Programming Guide.
constexpr uint64_t STATIC_SHARED_BYTES = 48 << 10;  // of a block
constexpr uint64_t CONSTANT_BYTES = 64 << 10;       // of a module
constexpr uint64_t ENTRY_PARAMETER_BYTES = 32764, ENTRY_PARAMETER_BYTES_BEFORE_8_1 = 4352;
constexpr uint64_t LOCAL_BYTES = 512 << 10;         // of a thread, the parameters of its calls among them
constexpr uint64_t VECTOR_BYTES = 16;               // of a variable's .v2 or .v4

// This machine's own, far above what a compiler writes.
constexpr uint64_t VARIABLE_BYTES = 1ull << 40;
constexpr uint64_t ALIGNMENT = 1 << 16;
constexpr uint64_t MODULE_ALIGNMENT = 512;          // of .global and .const: what Memory gives
constexpr uint64_t DIMENSIONS = 16;                 // of an array
constexpr uint64_t NESTED_SCOPES = 200;             // { in a function
constexpr uint64_t REGISTERS_OF_FUNCTION = 1 << 20;
constexpr uint64_t REGISTER_FILE_BYTES = 16 << 20;  // of a warp, immediates among them
constexpr uint64_t LIVENESS_BYTES = 512 << 20;      // while registers get their places: registers by basic blocks

}  // namespace vgpu
