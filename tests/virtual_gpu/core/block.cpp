// A block: its warps take turns, and meet at barriers. See block.h and warp.h.
#include "block.h"

#include <algorithm>

namespace vgpu {

namespace {

constexpr uint64_t QUANTUM = 1 << 14;  // instructions of a warp, forward and reverse, before the next has its turn

uint64_t special(Source source, const Grid& grid, const Warp& warp, int lane) {
    const auto& block = grid.launch.block;
    const uint32_t thread = warp.index * LANES + static_cast<uint32_t>(lane);
    const uint32_t threads = block[0] * block[1] * block[2];
    const uint32_t* id = warp.block->id;
    switch (source) {
        case Source::value: return 0;
        case Source::tid_x: return thread % block[0];
        case Source::tid_y: return thread / block[0] % block[1];
        case Source::tid_z: return thread / block[0] / block[1];
        case Source::ntid_x: return block[0];
        case Source::ntid_y: return block[1];
        case Source::ntid_z: return block[2];
        case Source::ctaid_x: return id[0];
        case Source::ctaid_y: return id[1];
        case Source::ctaid_z: return id[2];
        case Source::nctaid_x: return grid.launch.grid[0];
        case Source::nctaid_y: return grid.launch.grid[1];
        case Source::nctaid_z: return grid.launch.grid[2];
        case Source::laneid: return static_cast<uint32_t>(lane);
        case Source::warpid: return warp.index;
        case Source::nwarpid: return (threads + LANES - 1) / LANES;
        case Source::smid: return id[0] % 16;
        case Source::nsmid: return 16;
        case Source::gridid: return grid.id;
        case Source::lanemask_eq: return 1u << lane;
        case Source::lanemask_lt: return (1u << lane) - 1;
        case Source::lanemask_le: return (2u << lane) - 1;
        case Source::lanemask_gt: return ~((2u << lane) - 1);
        case Source::lanemask_ge: return ~((1u << lane) - 1);
        case Source::dynamic_smem_size: return grid.launch.dynamic_shared;
        case Source::total_smem_size: return grid.program.dynamic_shared_at + grid.launch.dynamic_shared;
    }
    return 0;
}

bool of_block(Source source) {
    return source == Source::ctaid_x || source == Source::ctaid_y || source == Source::ctaid_z || source == Source::smid;
}

void fill(Warp& warp, const Constant& constant, const Grid& grid) {
    for (int l = 0; l < LANES; ++l) {
        const uint64_t value = constant.value + special(constant.source, grid, warp, l);
        if (constant.bytes == 2) lanes<uint16_t>(warp, constant.at)[l] = static_cast<uint16_t>(value);
        else if (constant.bytes == 4) lanes<uint32_t>(warp, constant.at)[l] = static_cast<uint32_t>(value);
        else lanes<uint64_t>(warp, constant.at)[l] = value;
    }
}

// Opens every barrier that nobody is missing at. False if none opened.
bool open_barriers(Block& block) {
    bool opened = false;
    const auto unfinished = std::count_if(block.warps.begin(), block.warps.end(), [](const Warp& w) { return w.state != State::finished; });
    for (Warp& first : block.warps) {
        if (first.state != State::at_barrier) continue;
        std::vector<Warp*> met;
        for (Warp& warp : block.warps)
            if (warp.state == State::at_barrier && warp.barrier == first.barrier) met.push_back(&warp);
        const bool complete = first.barrier_threads == 0 ? static_cast<long>(met.size()) == unfinished
                                                         : met.size() * LANES >= first.barrier_threads;
        if (!complete) continue;
        uint32_t held = 0, alive = 0;
        for (const Warp* warp : met) {
            held += static_cast<uint32_t>(__builtin_popcount(warp->votes & warp->alive));
            alive += static_cast<uint32_t>(__builtin_popcount(warp->alive));
        }
        for (Warp* warp : met) {
            warp->state = State::running;
            if (warp->reduction == nullptr) continue;
            write_reduction(*warp, held, alive);
            warp->reduction = nullptr;
        }
        ++block.counters.barriers;
        // A warp that has ended has arrived at a barrier of all, and is no part of one with a number of threads.
        uint32_t warps = 0;
        for (const Warp* warp : met) warps |= 1u << warp->index;
        if (first.barrier_threads == 0 || first.barrier_threads >= block.warps.size() * LANES) block.shared.all_met();
        else block.shared.some_met(warps);
        opened = true;
    }
    return opened;
}

// Where the warps of a block wait that none of them can leave.
std::string hang(const Block& block) {
    std::string text;
    for (const Warp& warp : block.warps) {
        if (warp.state != State::at_barrier) continue;
        if (text.empty()) text = place_of(warp, warp.waits_at) + ": the block hangs: warp ";
        else text += ", warp ";
        text += std::to_string(warp.index) + " waits at barrier " + std::to_string(warp.barrier);
        if (warp.barrier_threads != 0) text += " for " + std::to_string(warp.barrier_threads) + " threads";
        text += " (PTX line " + std::to_string(block.grid.program.ops[warp.waits_at].line) + ")";
    }
    const auto ended = std::count_if(block.warps.begin(), block.warps.end(), [](const Warp& w) { return w.state == State::finished; });
    return text + (ended != 0 ? "; warps that have ended: " + std::to_string(ended) : "");
}

}  // namespace

Block::Block(const Grid& launched) : grid(launched), mix(launched.program.forms.size()) {
    const auto& size = grid.launch.block;
    const uint32_t threads = size[0] * size[1] * size[2];
    warps.resize((threads + LANES - 1) / LANES);
    for (size_t i = 0; i < warps.size(); ++i) {
        Warp& warp = warps[i];
        warp.index = static_cast<uint32_t>(i);
        warp.block = this;
        warp.storage.resize(grid.program.register_bytes + 64);
        warp.registers = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(warp.storage.data()) + 63) & ~uintptr_t{63});
        warp.local.resize(static_cast<size_t>(grid.program.local_bytes) * LANES);
        warp.parameters.resize(static_cast<size_t>(grid.program.frame_bytes) * LANES);
        for (const Constant& constant : grid.program.constants)
            if (constant.at != UNPLACED) fill(warp, constant, grid);
    }
}

void begin_block(Block& block, uint64_t index) {
    const Launch& launch = block.grid.launch;
    block.id[0] = static_cast<uint32_t>(index % launch.grid[0]);
    block.id[1] = static_cast<uint32_t>(index / launch.grid[0] % launch.grid[1]);
    block.id[2] = static_cast<uint32_t>(index / launch.grid[0] / launch.grid[1]);
    const Program& program = block.grid.program;
    block.random = Random(block.grid.options.seed * 0x9E3779B97F4A7C15ull + index);
    block.shared.prepare(program.static_shared, program.dynamic_shared_at, launch.dynamic_shared, block.grid.options);
    const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    for (Warp& warp : block.warps) {
        const uint32_t left = threads - warp.index * LANES;
        warp.alive = warp.active = left >= LANES ? ALL : (1u << left) - 1;
        warp.pc = warp.turn = 0;
        warp.apart = false;
        warp.parked = warp.expected = 0;
        warp.state = State::running;
        warp.executed = 0;
        warp.reduction = nullptr;
        warp.open.clear();
        warp.groups.clear();
        std::fill_n(warp.depth, LANES, 0u);
        for (const Constant& constant : program.constants)
            if (constant.at != UNPLACED && of_block(constant.source)) fill(warp, constant, block.grid);
    }
}

bool run_block(Block& block, uint64_t instructions) {
    const Options& options = block.grid.options;
    uint64_t executed = 0;
    const auto turn = [&](Warp& warp, uint64_t quantum) {
        const uint64_t before = warp.executed;
        step(warp, quantum);
        executed += warp.executed - before;
    };
    while (executed < instructions) {
        bool running = false, ran = false;
        if (options.order == Order::random) {
            std::vector<Warp*> ready;
            for (Warp& warp : block.warps)
                if (warp.state == State::running) ready.push_back(&warp);
            if (!ready.empty()) {
                turn(*ready[block.random.next() % ready.size()], 1 + block.random.next() % 50);
                ran = true;
            }
        } else {
            for (size_t i = 0; i < block.warps.size(); ++i) {
                Warp& warp = block.warps[options.order == Order::forward ? i : block.warps.size() - 1 - i];
                if (warp.state != State::running) continue;
                turn(warp, QUANTUM);
                ran = true;
            }
        }
        for (const Warp& warp : block.warps) running = running || warp.state == State::running;
        if (running) continue;
        if (std::all_of(block.warps.begin(), block.warps.end(), [](const Warp& w) { return w.state == State::finished; })) {
            for (const Warp& warp : block.warps) block.counters.warp_instructions += warp.executed;
            return true;
        }
        if (!open_barriers(block) && !ran) throw Trap{ERROR_LAUNCH_FAILED, hang(block)};
    }
    return false;
}

}  // namespace vgpu
