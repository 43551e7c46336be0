// See shared_memory.h.
#include "shared_memory.h"

#include <cstring>

#include "machine.h"

namespace vgpu {

namespace {

constexpr uint8_t POISON = 0xCD;

}  // namespace

void SharedMemory::prepare(uint32_t own, uint32_t added_at, uint32_t added, const Options& options) {
    size_ = added != 0 ? added_at + added : own;
    gap_begin_ = own;
    gap_end_ = added != 0 ? added_at : 0;
    bytes_.resize(size_ + 16);
    std::memset(bytes_.data(), POISON, size_);
    checked_ = options.check_races || options.check_initialised;
    if (checked_) shadow_.prepare(size_, options.check_races, options.check_initialised);
}

}  // namespace vgpu
