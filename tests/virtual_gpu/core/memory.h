// The memory that kernels of the virtual GPU may touch: device, pinned, managed, registered and module memory.
//
// Callers: the driver (allocate, free, copies) and the instructions that load and store (find, initialised, mark).
// One address range is reserved at start; a device pointer is the host's pointer. Every 512-byte granule names the
// allocation that owns it, alive or freed, so that a bad access can say what it hit. One bit a byte tells what has
// been written. Addresses of freed memory are not given out again while others are left.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace vgpu {

// Whether all bytes lie within the first `size`. Written so that no sum wraps: an offset of -4 is a huge address.
inline bool within(uint64_t address, uint64_t bytes, uint64_t size) { return address <= size && bytes <= size - address; }

enum class Kind : uint8_t { device, pinned, managed, registered, module, constant };

// Of the device's own memory, which the host reaches by copies only.
inline bool of_device(Kind kind) { return kind == Kind::device || kind == Kind::module || kind == Kind::constant; }

struct Allocation {
    uint64_t begin = 0, bytes = 0;
    Kind kind = Kind::device;
    std::atomic<bool> live{true};
    uint64_t serial = 0;  // the n-th allocation of this process, from 1
    uint64_t end() const { return begin + bytes; }
};

class Memory {
public:
    explicit Memory(uint64_t capacity);
    Memory(const Memory&) = delete;
    ~Memory();

    // An address aligned to 512 bytes, or 0 where less than `bytes` is free. Contents count as never written.
    uint64_t allocate(uint64_t bytes, Kind kind);
    // Host memory made visible to kernels; its contents count as written. False if it overlaps one that is registered.
    bool register_host(uint64_t address, uint64_t bytes);
    // False if `address` is not the first byte of a live allocation of one of these kinds.
    bool free(uint64_t address);
    bool unregister_host(uint64_t address);

    // The allocation, live or freed, that owns this address; null if none ever did.
    const Allocation* find(uint64_t address) const;
    // Whether all bytes lie in one live allocation.
    bool holds(uint64_t address, uint64_t bytes) const;
    // The host and the driver have written these bytes.
    void mark(uint64_t address, uint64_t bytes);
    // A device-to-device copy copies what is known of the bytes too.
    void copy_marks(uint64_t to, uint64_t from, uint64_t bytes);
    // For one aligned access of 1, 2, 4, 8 or 16 bytes. Registered memory always counts as written.
    bool written(uint64_t address, unsigned size) const {
        if (address - base_ >= reserved_) return true;
        const uint64_t at = address - base_;
        if (size == 16) return reinterpret_cast<const uint16_t*>(valid_)[at >> 4] == 0xffff;
        const unsigned bits = ((1u << size) - 1) << (at & 7);
        return (valid_[at >> 3] & bits) == bits;
    }
    void mark_access(uint64_t address, unsigned size) {
        if (address - base_ >= reserved_) return;
        const uint64_t at = address - base_;
        if (size == 16) {
            reinterpret_cast<uint16_t*>(valid_)[at >> 4] = 0xffff;
            return;
        }
        const uint8_t bits = static_cast<uint8_t>(((1u << size) - 1) << (at & 7));
        if ((valid_[at >> 3] & bits) != bits) __atomic_fetch_or(&valid_[at >> 3], bits, __ATOMIC_RELAXED);
    }

    uint64_t capacity() const { return capacity_; }
    uint64_t used() const { return used_; }  // device and managed memory, modules; pinned memory is the host's
    // "allocation 12 (device, 4096 bytes, freed): offset 17", or that no allocation is there.
    std::string describe(uint64_t address) const;

private:
    uint64_t place(uint64_t granules);
    Allocation& record(uint64_t begin, uint64_t bytes, Kind kind);
    const Allocation* find_registered(uint64_t address) const;

    static constexpr unsigned GRANULE_BITS = 9;
    uint64_t capacity_, reserved_, base_ = 0, next_ = 0;
    std::atomic<uint64_t> used_{0};
    uint32_t* owner_ = nullptr;  // allocation index + 1 by granule
    uint8_t* valid_ = nullptr;   // one bit a byte
    Allocation* allocations_ = nullptr;  // in place for good, so that kernels read it without a lock
    uint32_t count_ = 0;
    std::deque<uint32_t> freed_;  // oldest first, whose addresses may be given out again
    std::vector<Allocation*> registered_;
    mutable std::mutex mutex_;
};

}  // namespace vgpu
