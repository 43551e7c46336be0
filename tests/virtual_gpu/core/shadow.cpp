// See shadow.h.
#include "shadow.h"

#include <algorithm>
#include <string>

#include "warp.h"

namespace vgpu {

namespace {

bool reads(Use use) { return use == Use::read || use == Use::strong_read || use == Use::update; }
bool writes(Use use) { return use != Use::read && use != Use::strong_read; }
bool strong(Use use) { return use == Use::strong_read || use == Use::strong_write || use == Use::update; }
const char* verb(Use use) { return use == Use::update ? "updates" : reads(use) ? "reads" : "writes"; }

[[noreturn]] void race(uint32_t address, uint32_t warp, Use use, const char* done, uint32_t other) {
    throw Trap{ERROR_LAUNCH_FAILED, "race in shared memory at " + std::to_string(address) + ": warp " + std::to_string(warp) + " " +
               verb(use) + " what was " + done + " by warp " + std::to_string(other) + " with no barrier in between"};
}

}  // namespace

void Shadow::prepare(uint32_t bytes, bool races, bool initialised) {
    races_ = races;
    initialised_ = initialised;
    chunks_.assign((bytes + 15) / 16, Node{});
    words_.clear();
    bytes_.clear();
    epoch_ = 0;
    all_met();
}

void Shadow::all_met() {
    ++epoch_;
    order_.restart();
    if (!late_.empty()) late_.clear();
}

void Shadow::check(uint32_t address, uint32_t bytes, uint32_t warp, Use use) {
    Node& chunk = chunks_[address >> 4];
    if (bytes == 16 && chunk.split == 0) touch(chunk.all, address, 16, warp, use);
    else check_chunk(chunk, address, bytes, warp, use);
}

// Some bytes of a chunk, or all of one whose words differ.
void Shadow::check_chunk(Node& chunk, uint32_t address, uint32_t bytes, uint32_t warp, Use use) {
    if (chunk.split == 0) {
        History part = chunk.all;
        touch(part, address, bytes, warp, use);
        if (part == chunk.all) return;
        chunk.split = words_.take({chunk.all, 0});
        auto& four = words_.held[chunk.split - 1];
        for (uint32_t at = address; at < address + bytes; at += 4) put(four[at >> 2 & 3], at, std::min(bytes, 4u), part);
        return;
    }
    auto& four = words_.held[chunk.split - 1];
    for (uint32_t at = address; at < address + bytes; at += 4) check_word(four[at >> 2 & 3], at, std::min(bytes, 4u), warp, use);
    if (bytes < 16) return;
    for (const Node& word : four)
        if (word.split != 0 || !(word.all == four[0].all)) return;
    chunk.all = four[0].all;
    words_.idle.push_back(chunk.split);
    chunk.split = 0;
}

void Shadow::check_word(Node& word, uint32_t address, uint32_t bytes, uint32_t warp, Use use) {
    if (word.split == 0) {
        if (bytes == 4) {
            touch(word.all, address, 4, warp, use);
            return;
        }
        History part = word.all;
        touch(part, address, bytes, warp, use);
        if (!(part == word.all)) put(word, address, bytes, part);
        return;
    }
    auto& four = bytes_.held[word.split - 1];
    for (uint32_t i = 0; i < bytes; ++i) touch(four[(address & 3) + i], address + i, 1, warp, use);
    if (bytes < 4 || !(four[0] == four[1] && four[0] == four[2] && four[0] == four[3])) return;
    word.all = four[0];
    bytes_.idle.push_back(word.split);
    word.split = 0;
}

// Makes this the history of some bytes of a word that is not split, or of all.
void Shadow::put(Node& word, uint32_t address, uint32_t bytes, const History& history) {
    if (bytes == 4) {
        word.all = history;
        return;
    }
    word.split = bytes_.take(word.all);
    std::fill_n(bytes_.held[word.split - 1].begin() + (address & 3), bytes, history);
}

// The two commonest cases, with all checks on and only barriers of all, without a look at more than they need.
inline void Shadow::touch(History& history, uint32_t address, uint32_t bytes, uint32_t warp, Use use) {
    if (history.epoch != epoch_) {
        history.epoch = epoch_;
        history.readers = history.strong_readers = history.strong_writers = history.segment = 0;
        history.writer = 0;
    }
    if (races_ && !order_.parted() && !history.pending) {
        if (use == Use::read && history.written && history.writer == 0 && history.strong_writers == 0) {
            history.readers |= 1u << warp;
            return;
        }
        const uint32_t all = history.readers | history.strong_readers | history.strong_writers;
        if (use == Use::write && (history.writer == 0 || history.writer == warp + 1) && (all & ~(1u << warp)) == 0) {
            history.writer = static_cast<uint8_t>(warp + 1);
            history.written = true;
            return;
        }
    }
    touch_slowly(history, address, bytes, warp, use);
}

void Shadow::touch_slowly(History& history, uint32_t address, uint32_t bytes, uint32_t warp, Use use) {
    if (use == Use::end_async) history.pending = false;
    if (history.pending)
        throw Trap{ERROR_LAUNCH_FAILED, "race in shared memory at " + std::to_string(address) + ": " + verb(use) +
                   " bytes that a cp.async is still writing: a cp.async.wait_group is missing or waits for too few groups"};
    if (initialised_ && !history.written && reads(use))
        throw Trap{ERROR_LAUNCH_FAILED, std::string(verb(use)) + " shared memory at " + std::to_string(address) + " that was never written"};
    if (races_) {
        find_race(history, address, bytes, warp, use);
        if (use == Use::read) note(history.readers, Kind::reader, address, bytes, warp);
        if (strong(use) && reads(use)) note(history.strong_readers, Kind::strong_reader, address, bytes, warp);
        if (strong(use) && writes(use)) note(history.strong_writers, Kind::strong_writer, address, bytes, warp);
        if (!strong(use) && writes(use)) {
            history.writer = static_cast<uint8_t>(warp + 1);
            history.segment = order_.segment(warp);
        }
    }
    if (writes(use)) history.written = true;
    if (use == Use::begin_async) history.pending = true;
}

void Shadow::find_race(const History& history, uint32_t address, uint32_t bytes, uint32_t warp, Use use) const {
    const uint32_t others = ~(1u << warp);
    if (history.writer != 0 && history.writer != warp + 1 && !order_.before(history.writer - 1u, history.segment, warp))
        race(address, warp, use, "written", history.writer - 1u);
    if (!strong(use)) refuse_others(history.strong_writers & others, Kind::strong_writer, address, bytes, warp, use);
    if (!writes(use)) return;
    refuse_others(history.readers & others, Kind::reader, address, bytes, warp, use);
    if (!strong(use)) refuse_others(history.strong_readers & others, Kind::strong_reader, address, bytes, warp, use);
}

// A race with the first of these warps whose access is not before this one.
void Shadow::refuse_others(uint32_t warps, Kind kind, uint32_t address, uint32_t bytes, uint32_t warp, Use use) const {
    for (uint32_t rest = warps; rest != 0; rest &= rest - 1) {
        const auto other = static_cast<uint32_t>(__builtin_ctz(rest));
        uint32_t segment = 0;
        for (uint32_t i = 0; i < bytes && order_.parted(); ++i) {
            const auto found = late_.find(key(kind, address + i, other));
            if (found != late_.end()) segment = std::max(segment, found->second);
        }
        if (!order_.before(other, segment, warp)) race(address, warp, use, kind == Kind::strong_writer ? "written" : "read", other);
    }
}

void Shadow::note(uint32_t& warps, Kind kind, uint32_t address, uint32_t bytes, uint32_t warp) {
    warps |= 1u << warp;
    if (order_.segment(warp) == 0) return;
    for (uint32_t i = 0; i < bytes; ++i) late_[key(kind, address + i, warp)] = order_.segment(warp);
}

}  // namespace vgpu
