// The shared memory of a block, with what is known of each word: written at all, by whom, and since which barrier.
//
// A race is two warps that touch the same bytes, one of them writing, with no barrier of the whole block in between.
// cp.async writes from its issue to the end of the wait: nobody may touch the bytes meanwhile, its own warp included.
// Callers: the instructions that touch shared memory; block.cpp at a barrier.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vgpu {

struct Options;

class SharedMemory {
public:
    void prepare(uint32_t bytes, const Options& options);  // contents are poison and count as never written
    uint8_t* at(uint32_t address) { return bytes_.data() + address; }
    uint32_t size() const { return size_; }

    // One aligned access that lies inside. Throws Trap for a race or a read of what was never written.
    void read(uint32_t address, uint32_t bytes, uint32_t warp) {
        if (checked_) check_read(address, bytes, warp);
    }
    void write(uint32_t address, uint32_t bytes, uint32_t warp) {
        if (checked_) check_write(address, bytes, warp);
    }
    // Atomic operations do not race with each other.
    void update(uint32_t address, uint32_t bytes, uint32_t warp) {
        if (checked_) check_update(address, bytes, warp);
    }
    void begin_async(uint32_t address, uint32_t bytes, uint32_t warp);
    void end_async(uint32_t address, uint32_t bytes, uint32_t warp);
    void barrier() { ++epoch_; }

private:
    struct Word {
        uint32_t write_epoch = 0, read_epoch = 0;
        uint32_t readers = 0;        // warps that read in read_epoch
        uint8_t writer = 0, written_bytes = 0;  // who wrote which bytes in write_epoch
        uint8_t valid = 0, pending = 0;         // bytes ever written; bytes that a cp.async is writing
        uint8_t read_bytes = 0, atomic_bytes = 0;
    };
    void check_read(uint32_t address, uint32_t bytes, uint32_t warp);
    void check_write(uint32_t address, uint32_t bytes, uint32_t warp);
    void check_update(uint32_t address, uint32_t bytes, uint32_t warp);

    std::vector<uint8_t> bytes_;
    std::vector<Word> words_;
    uint32_t size_ = 0, epoch_ = 1;
    bool checked_ = false, races_ = false, initialised_ = false;
};

}  // namespace vgpu
