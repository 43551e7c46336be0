// Instructions that several lanes of a warp execute together: shuffles, votes, matrix products, and barriers of the block
// reached by lanes that are apart. Lanes park there until the others that belong to it have come. Caller: run.cpp.
#pragma once

#include "warp.h"

namespace vgpu {

// Places of lanes, and which of those that can run go on: those furthest behind.
void place(Warp& warp, uint32_t mask, uint32_t pc);
void choose(Warp& warp);
void turn_on(Warp& warp, uint32_t mask);

// `mask` of the active lanes have come to the instruction at warp.pc, a collective or a barrier; the others go on. False
// when the warp has to wait for others of its block. Throws Trap where the lanes wait for one another for ever.
bool come(Warp& warp, uint32_t mask);
// Lanes have ended: who waited for them need not any longer. As above.
bool go_on(Warp& warp);
// Lanes that are apart: lets others than those furthest behind run, each group in its turn.
void take_turns(Warp& warp);

}  // namespace vgpu
