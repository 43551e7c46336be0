// A launch: its blocks shared out among host threads. See machine.h.
//
// A thread runs one block to its end before it begins the next, but for a block that takes very long: it may wait for
// another block, so others are begun beside it and they take turns, RESIDENT at most. That is as many as may wait for one
// that has not begun; a GPU has such a bound too.
#include <algorithm>
#include <csignal>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "block.h"

namespace vgpu {

namespace {

constexpr uint64_t TURN = 1 << 22;  // instructions of a block's warps; what is no endless loop has ended long before
constexpr size_t RESIDENT = 64;     // blocks of a thread that have begun and not ended

// What the threads of a launch share.
struct Work {
    const Grid& grid;
    uint64_t total, stride;
    std::atomic<uint64_t> next{0};
    std::atomic<bool>& ended;
    std::mutex mutex;
    Outcome outcome;      // under the mutex
    Counters& counters;   // under the mutex

    // The block whose turn it is to begin; false if all have.
    bool take(uint64_t& index) {
        const uint64_t i = next < total ? next++ : total;
        if (i >= total) return false;
        index = grid.options.order == Order::reverse ? total - 1 - i : i * stride % total;
        return true;
    }

    void fail(Code code, const std::string& text) {
        next = total;
        const std::lock_guard lock(mutex);
        if (outcome.code == SUCCESS) outcome = {code, text};
        ended = true;  // behind the outcome: what the others stop with is not the fault
    }
};

void run_blocks(Work& work, std::vector<std::unique_ptr<Block>>& made) {
    std::vector<Block*> resident, idle;
    for (size_t turn = 0;;) {
        uint64_t index;
        if (turn == resident.size() && turn < RESIDENT && work.take(index)) {
            if (idle.empty()) {
                made.push_back(std::make_unique<Block>(work.grid));
                idle.push_back(made.back().get());
            }
            begin_block(*idle.back(), index);
            resident.push_back(idle.back());
            idle.pop_back();
        } else if (turn == resident.size()) {
            if (resident.empty()) return;
            turn = 0;
        }
        if (!run_block(*resident[turn], TURN)) {
            ++turn;
            continue;
        }
        idle.push_back(resident[turn]);
        resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(turn));
    }
}

void work_on(Work& work) {
    std::vector<std::unique_ptr<Block>> made;  // their counters are wanted after a fault too
    try {
        run_blocks(work, made);
    } catch (const Trap& trap) {
        work.fail(trap.code, trap.text);
    } catch (const std::bad_alloc&) {
        work.fail(ERROR_OUT_OF_MEMORY, work.grid.launch.kernel->name + ": no memory of the host is left to run it");
    }
    const std::lock_guard lock(work.mutex);
    for (const auto& block : made) {
        for (size_t form = 0; form < block->mix.size(); ++form)
            if (block->mix[form] != 0) block->counters.mix[work.grid.program.forms[form]] += block->mix[form];
        work.counters.add(block->counters);
    }
}

}  // namespace

Outcome run(const Launch& launch, Memory& memory, const Options& options, Counters& counters, const std::atomic<bool>* stop) {
    static std::atomic<uint64_t> launches{0};
    std::atomic<bool> ended{false};
    const Grid grid{launch, *launch.kernel->program, memory, options, stop, ended, ++launches};
    const uint64_t total = static_cast<uint64_t>(launch.grid[0]) * launch.grid[1] * launch.grid[2];
    uint64_t stride = options.order == Order::random ? (options.seed * 2 + 1) % total : 1;  // a seeded walk over all blocks
    while (total > 1 && stride != 1 && std::__gcd(stride, total) != 1) ++stride;
    if (stride == 0) stride = 1;
    Work work{grid, total, stride, {0}, ended, {}, {}, counters};
    std::vector<std::thread> helpers;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);  // the application's signals stay with its own threads
    try {
        for (unsigned t = 1; t < options.threads && t < total; ++t) helpers.emplace_back([&work] { work_on(work); });
    } catch (const std::system_error&) {
        // the host gives no more threads: those that there are share all blocks
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    work_on(work);
    for (std::thread& helper : helpers) helper.join();
    return work.outcome;
}

}  // namespace vgpu
