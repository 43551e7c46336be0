// The log buffers that callers hand to the just-in-time compiler and linker as options.
//
// Callers: module.cpp, link.cpp. Invariant: sizes are written back and buffers end with a NUL; PyCUDA reads as many
// bytes as the size says, whatever came of the call.
#pragma once

#include <string>

#include "cuda_api.h"

namespace vgpu {

bool known_options(unsigned count, const CUjit_option* options, void** values);
// Puts the log into the error buffer if the call failed, else into the info buffer, and how much of each was used.
void write_logs(unsigned count, const CUjit_option* options, void** values, const std::string& log, bool failed);

}  // namespace vgpu
