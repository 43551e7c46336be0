// The state of a warp and of its block while a launch runs. Plain data: a barrier is leaving the loop of run.cpp, so a
// warp can stop anywhere and another go on.
//
// A block belongs to one host thread; nothing here is shared between blocks but `Grid`.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "counters.h"
#include "machine.h"
#include "program.h"
#include "shared_memory.h"

namespace vgpu {

struct Block;

// What ends a launch. Thrown by instructions; text says what, the executor adds where.
struct Trap {
    Code code;
    std::string text;
};

// All blocks of a launch.
struct Grid {
    const Launch& launch;
    const Program& program;
    Memory& memory;
    const Options& options;
    const std::atomic<bool>* stop;
    const std::atomic<bool>& ended;  // a block has met a fault: the others stop too
    uint64_t id;
};

enum class State : uint8_t { running, at_barrier, finished };
enum class Vote : uint8_t { count, all, any };  // of barriers that reduce a predicate

// A cp.async that has been issued: what it will write, and the group it was committed to.
struct AsyncCopy {
    uint32_t to, bytes, valid;  // shared address; `valid` bytes come from `from`, zeros follow
    uint64_t from;
};

struct Frame {
    uint32_t back[LANES];  // where each lane returns to
};

struct Warp {
    uint8_t* registers = nullptr;
    alignas(64) int32_t on[LANES] = {};        // -1 for lanes of the executing instruction, else 0
    alignas(64) uint32_t carry[LANES] = {};    // CC.CF of add.cc
    uint32_t lane_pc[LANES] = {};              // meaningful while `apart`
    uint32_t pc = 0, alive = 0, active = 0, index = 0;
    uint32_t on_mask = 0;                      // what `on` holds
    bool apart = false;                        // lanes stand at different instructions
    uint32_t parked = 0;                       // lanes that wait at a collective or a barrier for others of the warp
    uint32_t expected = 0;                     // the lanes alive when the first of them came to a barrier
    uint32_t turn = 0;                         // the place of the lanes that take_turns let run last
    State state = State::running;
    uint32_t barrier = 0, barrier_threads = 0; // while at_barrier; 0 threads: the whole block
    uint32_t waits_at = 0;                     // the barrier's instruction
    const Op* reduction = nullptr;             // a barrier that reduces: writes its result when it opens
    Vote vote = Vote::count;
    uint32_t votes = 0;                        // the lanes whose predicate held
    uint64_t executed = 0;
    std::vector<Frame> frames;
    uint32_t depth[LANES] = {};                // of calls
    std::vector<uint8_t> local, parameters;    // LANES x local_bytes, LANES x frame_bytes
    std::vector<AsyncCopy> open;               // issued, not committed
    std::vector<std::vector<AsyncCopy>> groups; // committed, oldest first
    Block* block = nullptr;
    std::vector<uint8_t> storage;
};

// splitmix64: the same turns for the same seed on every machine.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }

private:
    uint64_t state_;
};

struct Block {
    explicit Block(const Grid& grid);
    const Grid& grid;
    uint32_t id[3] = {0, 0, 0};
    Random random{0};           // of Order::random
    SharedMemory shared;
    std::vector<Warp> warps;
    Counters counters;
    std::vector<uint64_t> mix;  // by Program::forms
};

// Runs until the warp finishes, meets a barrier, or has executed `quantum` instructions. Throws Trap.
void step(Warp& warp, uint64_t quantum);

template <class T>
inline T* lanes(Warp& warp, uint32_t at) { return reinterpret_cast<T*>(warp.registers + at); }

// "kernel, PTX line 7 (bar.sync), block (0, 0, 0), warp 1": where this instruction of a warp stands.
std::string place_of(const Warp& warp, uint32_t pc);

// Lanes whose predicate holds.
uint32_t bits_of(const int32_t* predicate);

}  // namespace vgpu
