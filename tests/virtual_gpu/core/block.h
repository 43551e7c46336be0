// Running one block, and barriers that reduce. Callers: launch.cpp; control.cpp of the instructions.
#pragma once

#include "warp.h"

namespace vgpu {

// bar.red: `held` threads of `alive` had the predicate. Writes the destination of warp.reduction. In control.cpp.
void write_reduction(Warp& warp, uint32_t held, uint32_t alive);

void begin_block(Block& block, uint64_t index);
// Goes on with a block that has begun, for about so many instructions of its warps. True when it has ended. Throws Trap.
bool run_block(Block& block, uint64_t instructions);

}  // namespace vgpu
