// Branches, barriers and fences: PTX ISA 8.5, sections 9.7.12 and 9.7.13.
#include "../core/block.h"
#include "access.h"
#include "lanes.h"

namespace vgpu {

namespace {

void nothing(Warp&, const Op&, uint32_t) {}  // what the executor does by the op's flow

void meet(Warp& warp, const Op& op, uint32_t mask, int barrier, int threads) {
    const int l = __builtin_ctz(mask);
    warp.barrier = lanes<uint32_t>(warp, op.at[barrier])[l];
    warp.barrier_threads = threads < 0 ? 0 : lanes<uint32_t>(warp, op.at[threads])[l];
    if (warp.barrier > 15) throw Trap{ERROR_LAUNCH_FAILED, "barrier " + std::to_string(warp.barrier) + ": a block has 16"};
    if (warp.barrier_threads % LANES != 0)
        throw Trap{ERROR_LAUNCH_FAILED, "a barrier of " + std::to_string(warp.barrier_threads) + " threads: it must be whole warps"};
}

void sync_all(Warp& warp, const Op& op, uint32_t mask) { meet(warp, op, mask, 0, -1); }
void sync_some(Warp& warp, const Op& op, uint32_t mask) { meet(warp, op, mask, 0, 1); }

template <Vote VOTE>
void sync_and_vote(Warp& warp, const Op& op, uint32_t mask) {
    meet(warp, op, mask, 1, -1);
    const uint32_t held = bits_of(lanes<int32_t>(warp, op.at[2]));
    warp.votes = op.negated ? ~held : held;
    warp.vote = VOTE;
    warp.reduction = &op;
}

void trap(Warp&, const Op&, uint32_t mask) {
    throw Trap{ERROR_LAUNCH_FAILED, "trap is executed (lane " + std::to_string(__builtin_ctz(mask)) + ")"};
}

}  // namespace

void write_reduction(Warp& warp, uint32_t held, uint32_t alive) {
    const uint32_t result = warp.vote == Vote::count ? held
                          : -static_cast<uint32_t>(warp.vote == Vote::all ? held == alive : held != 0);
    for (int l = 0; l < LANES; ++l)
        if (warp.alive >> l & 1) lanes<uint32_t>(warp, warp.reduction->at[0])[l] = result;
}

void add_control(Forms& forms) {
    for (const char* name : {"bra", "bra.uni"}) forms.add(name, "", &nothing, Flow::branch);
    for (const char* name : {"brx.idx", "brx.idx.uni"}) forms.add(name, "w", &nothing, Flow::indexed);
    forms.add("call", "", &nothing, Flow::call);
    forms.add("ret", "", &nothing, Flow::leave);
    forms.add("exit", "", &nothing, Flow::finish);
    for (const std::string name : {"bar.sync", "barrier.sync", "barrier.sync.aligned"}) {
        forms.add(name, "w", &sync_all, Flow::barrier);
        forms.add(name, "ww", &sync_some, Flow::barrier);
    }
    forms.add("bar.red.popc.u32", "Wwn", &sync_and_vote<Vote::count>, Flow::barrier);
    forms.add("bar.red.and.pred", "Pwn", &sync_and_vote<Vote::all>, Flow::barrier);
    forms.add("bar.red.or.pred", "Pwn", &sync_and_vote<Vote::any>, Flow::barrier);
    // one memory, in order: a fence has nothing to wait for
    for (const char* name : {"membar.cta", "membar.gl", "membar.sys"}) forms.add(name, "", &nothing);
    forms.add("nanosleep.u32", "w", &nothing, Flow::yield);
    forms.add("trap", "", &trap);
}

}  // namespace vgpu
