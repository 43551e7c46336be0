// See shared_memory.h.
#include "shared_memory.h"

#include <algorithm>
#include <cstring>

#include "warp.h"

namespace vgpu {

namespace {

constexpr uint8_t POISON = 0xCD;

[[noreturn]] void race(const char* what, uint32_t address, uint32_t warp, uint32_t other) {
    throw Trap{ERROR_LAUNCH_FAILED, std::string("race in shared memory at ") + std::to_string(address) + ": warp " +
               std::to_string(warp) + " " + what + " warp " + std::to_string(other) + " with no barrier in between"};
}

[[noreturn]] void pending(const char* what, uint32_t address) {
    throw Trap{ERROR_LAUNCH_FAILED, std::string("race in shared memory at ") + std::to_string(address) + ": " + what +
               " bytes that a cp.async is still writing: a cp.async.wait_group is missing or waits for too few groups"};
}

// The bytes of one word that an access covers.
template <class Visit>
void each_word(uint32_t address, uint32_t bytes, Visit visit) {
    if (bytes < 4) {
        visit(address >> 2, static_cast<uint8_t>(((1u << bytes) - 1) << (address & 3)));
        return;
    }
    for (uint32_t word = address >> 2; word < (address + bytes) >> 2; ++word) visit(word, uint8_t{0xf});
}

}  // namespace

void SharedMemory::prepare(uint32_t bytes, const Options& options) {
    races_ = options.check_races;
    initialised_ = options.check_initialised;
    checked_ = races_ || initialised_;
    size_ = bytes;
    bytes_.resize(bytes + 16);
    std::memset(bytes_.data(), POISON, bytes);
    if (checked_) {
        words_.assign((bytes + 3) / 4, Word{});
        epoch_ = 1;
    }
}

void SharedMemory::check_read(uint32_t address, uint32_t bytes, uint32_t warp) {
    each_word(address, bytes, [&](uint32_t index, uint8_t mask) {
        Word& word = words_[index];
        if (word.pending & mask) pending("reads", index * 4);
        if (initialised_ && (word.valid & mask) != mask)
            throw Trap{ERROR_LAUNCH_FAILED, "reads shared memory at " + std::to_string(address) + " that was never written"};
        if (!races_) return;
        if (word.write_epoch == epoch_ && word.writer != warp && (word.written_bytes & mask))
            race("reads what was written by", index * 4, warp, word.writer);
        if (word.read_epoch != epoch_) {
            word.read_epoch = epoch_;
            word.readers = 0;
            word.read_bytes = 0;
        }
        word.readers |= 1u << warp;
        word.read_bytes |= mask;
    });
}

void SharedMemory::check_write(uint32_t address, uint32_t bytes, uint32_t warp) {
    each_word(address, bytes, [&](uint32_t index, uint8_t mask) {
        Word& word = words_[index];
        if (word.pending & mask) pending("writes", index * 4);
        if (races_) {
            if (word.write_epoch == epoch_ && word.writer != warp && (word.written_bytes & mask))
                race("writes what was written by", index * 4, warp, word.writer);
            if (word.read_epoch == epoch_ && (word.readers & ~(1u << warp)) && (word.read_bytes & mask))
                race("writes what was read by", index * 4, warp,
                     static_cast<uint32_t>(__builtin_ctz(word.readers & ~(1u << warp))));
            if (word.write_epoch != epoch_ || word.writer != warp) word.written_bytes = word.atomic_bytes = 0;
            word.write_epoch = epoch_;
            word.writer = static_cast<uint8_t>(warp);
            word.written_bytes |= mask;
        }
        word.valid |= mask;
    });
}

void SharedMemory::check_update(uint32_t address, uint32_t bytes, uint32_t warp) {
    each_word(address, bytes, [&](uint32_t index, uint8_t mask) {
        Word& word = words_[index];
        if (word.pending & mask) pending("updates", index * 4);
        if (initialised_ && (word.valid & mask) != mask)
            throw Trap{ERROR_LAUNCH_FAILED, "updates shared memory at " + std::to_string(address) + " that was never written"};
        if (!races_) return;
        const bool plain = word.written_bytes & mask & static_cast<uint8_t>(~word.atomic_bytes);
        if (word.write_epoch == epoch_ && word.writer != warp && plain)
            race("updates what was written by", index * 4, warp, word.writer);
        if (word.write_epoch != epoch_) word.written_bytes = word.atomic_bytes = 0;
        word.write_epoch = epoch_;
        word.writer = static_cast<uint8_t>(warp);
        word.written_bytes |= mask;
        word.atomic_bytes |= mask;
    });
}

void SharedMemory::begin_async(uint32_t address, uint32_t bytes, uint32_t warp) {
    if (!checked_) return;
    check_write(address, bytes, warp);
    each_word(address, bytes, [&](uint32_t index, uint8_t mask) { words_[index].pending |= mask; });
}

void SharedMemory::end_async(uint32_t address, uint32_t bytes, uint32_t warp) {
    if (!checked_) return;
    each_word(address, bytes, [&](uint32_t index, uint8_t mask) { words_[index].pending &= static_cast<uint8_t>(~mask); });
    check_write(address, bytes, warp);
}

}  // namespace vgpu
