// Steps a warp through its program. Lanes that go apart are run one group at a time, the one furthest behind first, so
// that they meet again at the first basic block both reach (minimum-PC reconvergence). Now and then another group has its
// turn, so that lanes may wait for one another in a loop.

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "collective.h"

namespace vgpu {

uint32_t bits_of(const int32_t* predicate) {
#ifdef __AVX2__
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) {
        const __m256i lane = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(predicate + i * 8));
        bits |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lane))) << (i * 8);
    }
    return bits;
#else
    uint32_t bits = 0;
    for (int l = 0; l < LANES; ++l) bits |= static_cast<uint32_t>(predicate[l] & 1) << l;
    return bits;
#endif
}

namespace {

constexpr uint64_t LOOK_UP = 4096;  // instructions between two looks at the stop flag, and turns of lanes that are apart

// `mask` of the active lanes go to `target`, the others to the next instruction.
void jump(Warp& warp, uint32_t mask, uint32_t target, Counters& counters) {
    if (mask == warp.active) {
        warp.pc = target;
        return;
    }
    if (mask == 0) {
        ++warp.pc;
        return;
    }
    ++counters.divergent_branches;
    place(warp, warp.active & ~mask, warp.pc + 1);
    place(warp, mask, target);
    choose(warp);
}

void enter(Warp& warp, uint32_t mask, uint32_t target, Counters& counters) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        if (warp.depth[l] == warp.frames.size()) warp.frames.emplace_back();
        if (warp.depth[l] == 64) throw Trap{ERROR_LAUNCH_FAILED, "calls are nested more than 64 deep"};
        warp.frames[warp.depth[l]++].back[l] = warp.pc + 1;
    }
    jump(warp, mask, target, counters);
}

void leave(Warp& warp, uint32_t mask) {
    place(warp, warp.active & ~mask, warp.pc + 1);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        warp.lane_pc[l] = warp.frames[--warp.depth[l]].back[l];
    }
    choose(warp);
}

void indexed(Warp& warp, const Op& op, uint32_t mask, const std::vector<uint32_t>& table) {
    const uint32_t* index = lanes<uint32_t>(warp, op.at[0]);
    place(warp, warp.active & ~mask, warp.pc + 1);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        if (index[l] >= table.size()) throw Trap{ERROR_LAUNCH_FAILED, "brx.idx past the end of its table"};
        warp.lane_pc[l] = table[index[l]];
    }
    choose(warp);
}

// False when the warp has finished, or waits.
bool finish(Warp& warp, uint32_t mask) {
    warp.alive &= ~mask;
    if (warp.alive == 0) {
        warp.state = State::finished;
        return false;
    }
    place(warp, warp.active & ~mask, warp.pc + 1);
    if (warp.parked != 0) return go_on(warp);
    choose(warp);
    return true;
}

// Whether each living lane's membermask names all of them.
bool together(Warp& warp, const Op& op) {
    if (op.members == EVERYONE) return true;
    const uint32_t* members = lanes<uint32_t>(warp, op.at[op.members]);
    uint32_t missed = 0;
    for (uint32_t rest = warp.alive; rest != 0; rest &= rest - 1) missed |= warp.alive & ~members[__builtin_ctz(rest)];
    return missed == 0;
}

void run(Warp& warp, uint64_t quantum) {
    Block& block = *warp.block;
    const Program& program = block.grid.program;
    const Options& options = block.grid.options;
    const Op* ops = program.ops.data();
    for (uint64_t done = 0; done < quantum; ++done) {
        const Op* op = &ops[warp.pc];
        if (warp.apart && op->leader) {
            place(warp, warp.active, warp.pc);
            choose(warp);
            op = &ops[warp.pc];
        }
        if (++warp.executed % LOOK_UP == 0) {
            if (block.grid.stop != nullptr && block.grid.stop->load(std::memory_order_relaxed))
                throw Trap{ERROR_LAUNCH_FAILED, "the launch was stopped"};
            if (block.grid.ended.load(std::memory_order_relaxed)) throw Trap{ERROR_LAUNCH_FAILED, "another block has met a fault"};
            if (options.instruction_limit != 0 && warp.executed > options.instruction_limit)
                throw Trap{ERROR_LAUNCH_TIMEOUT, "the warp executed more than " + std::to_string(options.instruction_limit) + " instructions"};
            if (warp.apart) {
                take_turns(warp);
                op = &ops[warp.pc];
            }
        }
        if (options.count) ++block.mix[op->form];
        uint32_t mask = warp.active;
        if (op->guard != 0) {
            const uint32_t held = bits_of(lanes<int32_t>(warp, op->guard_at));
            mask &= op->guard == 1 ? held : ~held;
        }
        switch (op->flow) {
            case Flow::next:
                if (mask == warp.alive) {
                    op->full(warp, *op, mask);
                } else if (mask != 0) {
                    turn_on(warp, mask);
                    op->masked(warp, *op, mask);
                }
                ++warp.pc;
                break;
            case Flow::collective:
                if (mask == warp.alive && together(warp, *op)) {
                    op->full(warp, *op, mask);
                    ++warp.pc;
                } else if (mask == 0) {
                    ++warp.pc;
                } else if (!come(warp, mask)) {
                    return;
                }
                break;
            case Flow::branch: jump(warp, mask, op->target, block.counters); break;
            case Flow::indexed: indexed(warp, *op, mask, program.tables[op->target]); break;
            case Flow::call: enter(warp, mask, op->target, block.counters); break;
            case Flow::leave: leave(warp, mask); break;
            case Flow::finish:
                if (!finish(warp, mask)) return;
                break;
            case Flow::barrier:
                if (mask == 0) {
                    ++warp.pc;
                    break;
                }
                if (mask != warp.alive) {
                    if (!come(warp, mask)) return;
                    break;
                }
                op->full(warp, *op, mask);
                warp.waits_at = warp.pc++;
                warp.state = State::at_barrier;
                return;
            case Flow::yield: ++warp.pc; return;
        }
    }
}

}  // namespace

void step(Warp& warp, uint64_t quantum) {
    try {
        run(warp, quantum);
    } catch (Trap& trap) {
        trap.text = place_of(warp, warp.pc) + ": " + trap.text;
        throw;
    }
}

std::string place_of(const Warp& warp, uint32_t pc) {
    const Block& block = *warp.block;
    const Op& op = block.grid.program.ops[pc];
    return block.grid.launch.kernel->name + ", PTX line " + std::to_string(op.line) + " (" + block.grid.program.forms[op.form] +
           "), block (" + std::to_string(block.id[0]) + ", " + std::to_string(block.id[1]) + ", " + std::to_string(block.id[2]) +
           "), warp " + std::to_string(warp.index);
}

}  // namespace vgpu
