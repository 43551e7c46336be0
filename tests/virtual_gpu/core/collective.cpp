// See collective.h. PTX ISA 8.5, sections 9.7.9.6, 9.7.13.1 and 9.7.13.10: an instruction with a membermask waits for all
// lanes of the mask that have not ended; a barrier of the block for all lanes of the warp that have not ended.
//
// What hardware leaves undefined ends the launch by name. Lanes of one mask must come to the same instruction of the
// text: the same collective at two places is not recognised as one.
#include "collective.h"

#include <algorithm>
#include <cstdio>

namespace vgpu {

namespace {

const Op& op_at(const Warp& warp, uint32_t pc) { return warp.block->grid.program.ops[pc]; }

uint32_t members_of(Warp& warp, const Op& op, int lane) {
    return op.members == EVERYONE ? ALL : lanes<uint32_t>(warp, op.at[op.members])[lane];
}

// The lanes of `among` that stand at this instruction.
uint32_t standing(const Warp& warp, uint32_t among, uint32_t pc) {
    uint32_t found = 0;
    for (uint32_t rest = among; rest != 0; rest &= rest - 1)
        if (warp.lane_pc[__builtin_ctz(rest)] == pc) found |= rest & -rest;
    return found;
}

std::string mask_text(uint32_t mask) {
    char text[12];
    std::snprintf(text, sizeof text, "0x%08x", mask);
    return text;
}

[[noreturn]] void refuse(Warp& warp, uint32_t pc, const std::string& text) {
    warp.pc = pc;  // where the fault is said to be
    throw Trap{ERROR_LAUNCH_FAILED, text};
}

// Executes the collective at `pc` for each set of lanes that is complete there.
void execute_complete(Warp& warp, uint32_t here, uint32_t pc) {
    const Op& op = op_at(warp, pc);
    while (here != 0) {
        const uint32_t members = members_of(warp, op, __builtin_ctz(here)), wanted = members & warp.alive;
        uint32_t same = 0;
        for (uint32_t rest = here; rest != 0; rest &= rest - 1)
            if (members_of(warp, op, __builtin_ctz(rest)) == members) same |= rest & -rest;
        here &= ~same;
        if ((same & ~members) != 0)
            refuse(warp, pc, "lanes " + mask_text(same & ~members) + " are not in their own membermask, " + mask_text(members));
        if (same != wanted) continue;
        warp.pc = pc;
        turn_on(warp, wanted);
        (wanted == warp.alive ? op.full : op.masked)(warp, op, wanted);
        warp.parked &= ~wanted;
        place(warp, wanted, pc + 1);
    }
}

// All lanes are parked and no collective is complete: they stand at one barrier of the block, or for ever.
bool wait_for_block(Warp& warp) {
    const uint32_t first = warp.lane_pc[__builtin_ctz(warp.parked)];
    uint32_t barrier = 0, threads = 0;
    for (uint32_t rest = warp.parked; rest != 0;) {
        const uint32_t pc = warp.lane_pc[__builtin_ctz(rest)], here = standing(warp, rest, pc);
        const Op& op = op_at(warp, pc);
        rest &= ~here;
        if (op.flow == Flow::collective)
            refuse(warp, pc, "the membermask names lanes " + mask_text(members_of(warp, op, __builtin_ctz(here)) & warp.alive) + ", lanes " +
                   mask_text(here) + " execute it: the others wait elsewhere");
        warp.pc = pc;
        op.full(warp, op, here);
        const bool another = pc != first && (warp.barrier != barrier || warp.barrier_threads != threads || warp.reduction != nullptr);
        if (another || (here != warp.expected && op.aligned))
            refuse(warp, pc, "a barrier is reached by some lanes of the warp only (" + mask_text(here) + " of " + mask_text(warp.expected) + ")");
        barrier = warp.barrier;
        threads = warp.barrier_threads;
    }
    for (uint32_t rest = warp.parked; rest != 0; rest &= rest - 1) ++warp.lane_pc[__builtin_ctz(rest)];
    warp.waits_at = first;
    warp.parked = warp.expected = 0;
    warp.state = State::at_barrier;
    choose(warp);
    return false;
}

}  // namespace

void place(Warp& warp, uint32_t mask, uint32_t pc) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) warp.lane_pc[__builtin_ctz(rest)] = pc;
}

void turn_on(Warp& warp, uint32_t mask) {
    if (warp.on_mask == mask) return;
    for (int l = 0; l < LANES; ++l) warp.on[l] = -static_cast<int32_t>(mask >> l & 1);
    warp.on_mask = mask;
}

namespace {

void activate(Warp& warp, uint32_t pc) {
    warp.pc = pc;
    warp.active = standing(warp, warp.alive & ~warp.parked, pc);
    warp.apart = warp.active != warp.alive;
}

}  // namespace

// Every living lane's place must be in lane_pc.
void choose(Warp& warp) {
    uint32_t least = UINT32_MAX;
    for (uint32_t rest = warp.alive & ~warp.parked; rest != 0; rest &= rest - 1) least = std::min(least, warp.lane_pc[__builtin_ctz(rest)]);
    activate(warp, least);
}

void take_turns(Warp& warp) {
    place(warp, warp.active, warp.pc);
    uint32_t next = UINT32_MAX, least = UINT32_MAX;
    for (uint32_t rest = warp.alive & ~warp.parked; rest != 0; rest &= rest - 1) {
        const uint32_t pc = warp.lane_pc[__builtin_ctz(rest)];
        least = std::min(least, pc);
        if (pc > warp.turn) next = std::min(next, pc);
    }
    warp.turn = next != UINT32_MAX ? next : least;
    activate(warp, warp.turn);
}

bool come(Warp& warp, uint32_t mask) {
    const Op& op = op_at(warp, warp.pc);
    place(warp, warp.active & ~mask, warp.pc + 1);
    place(warp, mask, warp.pc);
    if (op.flow == Flow::barrier && warp.expected == 0) warp.expected = warp.alive;
    warp.parked |= mask;
    return go_on(warp);
}

bool go_on(Warp& warp) {
    for (uint32_t rest = warp.parked; rest != 0;) {
        const uint32_t pc = warp.lane_pc[__builtin_ctz(rest)], here = standing(warp, rest, pc);
        rest &= ~here;
        if (op_at(warp, pc).flow == Flow::collective) execute_complete(warp, here, pc);
    }
    if (warp.parked == warp.alive) return wait_for_block(warp);
    choose(warp);
    return true;
}

}  // namespace vgpu
