// What is known of each byte of a block's shared memory: written at all, and by which warps it was touched since the last
// barrier of the whole block.
//
// A race is two warps that touch the same byte with no barrier of both in between, one of them writing, unless both are
// strong in the sense of the PTX memory model: of what this machine runs, atomic or volatile. That such accesses can
// order others is not known here: data handed over by a flag in shared memory counts as a race.
// cp.async writes from its issue to the end of the wait: nobody may touch the bytes meanwhile, its own warp included.
//
// Most accesses are whole words or 16 bytes, so the bytes of a chunk of 16 share one History while they are alike, then
// those of a word, and only then does each have its own. Caller: SharedMemory.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "warp_order.h"

namespace vgpu {

enum class Use : uint8_t { read, write, strong_read, strong_write, update, begin_async, end_async };

class Shadow {
public:
    void prepare(uint32_t bytes, bool races, bool initialised);  // nothing is written
    // An aligned access of 1, 2, 4, 8 or 16 bytes. Throws Trap.
    void check(uint32_t address, uint32_t bytes, uint32_t warp, Use use);
    void all_met();
    void some_met(uint32_t warps) { order_.meet(warps); }

private:
    struct History {
        uint32_t epoch = 0;  // of all below but `written` and `pending`: what an older one says is before everything now
        uint32_t readers = 0, strong_readers = 0, strong_writers = 0;  // warps
        uint32_t segment = 0;            // of the writer when it wrote
        uint8_t writer = 0;              // 1 + the warp that wrote last and was not strong; 0: none
        bool written = false;            // ever
        bool pending = false;            // a cp.async is writing it
        bool operator==(const History&) const = default;
    };
    struct Node {
        History all;
        uint32_t split = 0;  // 1 + where its parts are while they differ; 0: `all` holds
    };
    // Four parts of what is split, by 1 + index; what is joined again is used anew.
    template <class Part>
    struct Pool {
        std::vector<std::array<Part, 4>> held;
        std::vector<uint32_t> idle;
        uint32_t take(const Part& like) {
            if (idle.empty()) {
                held.emplace_back();
                idle.push_back(static_cast<uint32_t>(held.size()));
            }
            const uint32_t at = idle.back();
            idle.pop_back();
            held[at - 1].fill(like);
            return at;
        }
        void clear() {
            held.clear();
            idle.clear();
        }
    };
    enum class Kind : uint8_t { reader, strong_reader, strong_writer };

    void check_chunk(Node& chunk, uint32_t address, uint32_t bytes, uint32_t warp, Use use);
    void check_word(Node& word, uint32_t address, uint32_t bytes, uint32_t warp, Use use);
    void put(Node& word, uint32_t address, uint32_t bytes, const History& history);
    void touch(History& history, uint32_t address, uint32_t bytes, uint32_t warp, Use use);
    void touch_slowly(History& history, uint32_t address, uint32_t bytes, uint32_t warp, Use use);
    void find_race(const History& history, uint32_t address, uint32_t bytes, uint32_t warp, Use use) const;
    void refuse_others(uint32_t warps, Kind kind, uint32_t address, uint32_t bytes, uint32_t warp, Use use) const;
    void note(uint32_t& warps, Kind kind, uint32_t address, uint32_t bytes, uint32_t warp);
    static uint64_t key(Kind kind, uint32_t address, uint32_t warp) {
        return (static_cast<uint64_t>(address) << 5 | warp) << 2 | static_cast<uint64_t>(kind);
    }

    std::vector<Node> chunks_;
    Pool<Node> words_;
    Pool<History> bytes_;
    WarpOrder order_;
    std::unordered_map<uint64_t, uint32_t> late_;  // segments of readers and strong writers, where they are not 0
    uint32_t epoch_ = 1;
    bool races_ = false, initialised_ = false;
};

}  // namespace vgpu
