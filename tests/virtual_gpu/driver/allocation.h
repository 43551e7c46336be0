// Allocating, freeing and finding memory, for the API functions that do it in their different ways.
//
// Callers: memory_api.cpp, host_memory.cpp, copies and pointer attributes.
#pragma once

#include "context.h"

namespace vgpu {

CUresult allocate(Call& call, uint64_t* out, uint64_t bytes, Kind kind, unsigned flags);
CUresult release(Call& call, uint64_t address, bool host);
// The allocation made through the API that holds an address; null if none.
const std::pair<const uint64_t, Block>* find_block(const Driver& state, uint64_t address);

}  // namespace vgpu
