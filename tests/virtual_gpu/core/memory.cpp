// See memory.h.
#include "memory.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <stdexcept>

namespace vgpu {

namespace {

constexpr uint64_t ADDRESSES = 32ull << 30;  // reserved, not used: freed addresses rest until these are spent
constexpr uint32_t RECORDS = 1u << 22;       // allocations in the life of a process

void* reserve(uint64_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::runtime_error("virtual GPU: no address space is left for its memory");
    return at;
}

const char* word(Kind kind) {
    switch (kind) {
        case Kind::device: return "device";
        case Kind::pinned: return "pinned";
        case Kind::managed: return "managed";
        case Kind::registered: return "registered";
        case Kind::module: return "module";
        case Kind::constant: return "constant";
    }
    return "unknown";
}

bool counts(Kind kind) { return of_device(kind) || kind == Kind::managed; }

}  // namespace

Memory::Memory(uint64_t capacity) : capacity_(capacity), reserved_(ADDRESSES) {
    base_ = reinterpret_cast<uint64_t>(reserve(reserved_));  // a page's address is a granule's too
    owner_ = static_cast<uint32_t*>(reserve((reserved_ >> GRANULE_BITS) * sizeof(uint32_t)));
    valid_ = static_cast<uint8_t*>(reserve(reserved_ / 8));
    allocations_ = static_cast<Allocation*>(reserve(RECORDS * sizeof(Allocation)));
}

Memory::~Memory() {
    munmap(reinterpret_cast<void*>(base_), reserved_);
    munmap(owner_, (reserved_ >> GRANULE_BITS) * sizeof(uint32_t));
    munmap(valid_, reserved_ / 8);
    munmap(allocations_, RECORDS * sizeof(Allocation));
}

Allocation& Memory::record(uint64_t begin, uint64_t bytes, Kind kind) {
    Allocation& made = *new (&allocations_[count_]) Allocation;
    made.begin = begin;
    made.bytes = bytes;
    made.kind = kind;
    made.serial = ++count_;
    return made;
}

// A granule is left free behind every allocation, so that a step past the end never lands in the next one.
uint64_t Memory::place(uint64_t granules) {
    if ((next_ + granules + 1) << GRANULE_BITS <= reserved_) {
        const uint64_t at = next_;
        next_ += granules + 1;
        return at;
    }
    for (auto it = freed_.begin(); it != freed_.end(); ++it) {
        const Allocation& old = allocations_[*it];
        const uint64_t held = (old.bytes + (1u << GRANULE_BITS) - 1) >> GRANULE_BITS;
        if (held < granules) continue;
        const uint64_t at = (old.begin - base_) >> GRANULE_BITS;
        freed_.erase(it);
        return at;
    }
    return UINT64_MAX;
}

uint64_t Memory::allocate(uint64_t bytes, Kind kind) {
    const std::lock_guard lock(mutex_);
    if (bytes == 0 || bytes > reserved_ || (counts(kind) && bytes > capacity_ - used_) || count_ == RECORDS) return 0;
    const uint64_t granules = (bytes + (1u << GRANULE_BITS) - 1) >> GRANULE_BITS;
    const uint64_t at = place(granules);
    if (at == UINT64_MAX) return 0;
    const Allocation& made = record(base_ + (at << GRANULE_BITS), bytes, kind);
    const uint64_t shadow = (granules << GRANULE_BITS) / 8;
    std::memset(valid_ + ((at << GRANULE_BITS) >> 3), 0, shadow);
    for (uint64_t g = at; g < at + granules; ++g) __atomic_store_n(&owner_[g], count_, __ATOMIC_RELEASE);
    if (counts(kind)) used_ += bytes;
    return made.begin;
}

bool Memory::free(uint64_t address) {
    const std::lock_guard lock(mutex_);
    const Allocation* found = find(address);
    if (found == nullptr || !found->live || found->begin != address || found->kind == Kind::registered) return false;
    auto& gone = allocations_[found->serial - 1];
    gone.live = false;
    if (counts(gone.kind)) used_ -= gone.bytes;
    const uint64_t page = 4096, first = (gone.begin + page - 1) / page * page, last = gone.end() / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    freed_.push_back(static_cast<uint32_t>(gone.serial - 1));
    return true;
}

bool Memory::register_host(uint64_t address, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    for (const Allocation* held : registered_)
        if (address < held->end() && held->begin < address + bytes) return false;
    if (count_ == RECORDS) return false;
    registered_.push_back(&record(address, bytes, Kind::registered));
    return true;
}

bool Memory::unregister_host(uint64_t address) {
    const std::lock_guard lock(mutex_);
    for (auto it = registered_.begin(); it != registered_.end(); ++it) {
        if ((*it)->begin != address) continue;
        (*it)->live = false;
        registered_.erase(it);
        return true;
    }
    return false;
}

const Allocation* Memory::find_registered(uint64_t address) const {
    const std::lock_guard lock(mutex_);
    for (const Allocation* held : registered_)
        if (held->begin <= address && address < held->end()) return held;
    return nullptr;
}

const Allocation* Memory::find(uint64_t address) const {
    if (address - base_ >= reserved_) return find_registered(address);
    const uint32_t index = __atomic_load_n(&owner_[(address - base_) >> GRANULE_BITS], __ATOMIC_ACQUIRE);
    return index == 0 ? nullptr : &allocations_[index - 1];
}

bool Memory::holds(uint64_t address, uint64_t bytes) const {
    const Allocation* found = find(address);
    return found != nullptr && found->live && bytes <= found->bytes && address - found->begin <= found->bytes - bytes;
}

void Memory::mark(uint64_t address, uint64_t bytes) {
    if (address - base_ >= reserved_) return;
    uint64_t at = address - base_;
    const uint64_t end = at + bytes;
    for (; at < end && (at & 7); ++at) mark_access(base_ + at, 1);
    if (at + 8 <= end) std::memset(valid_ + (at >> 3), 0xff, (end - at) >> 3);
    for (at += (end - at) & ~7ull; at < end; ++at) mark_access(base_ + at, 1);
}

void Memory::copy_marks(uint64_t to, uint64_t from, uint64_t bytes) {
    if (to - base_ >= reserved_) return;
    if (((to | from) & 7) == 0 && from - base_ < reserved_) {
        const uint64_t whole = bytes / 8 * 8;
        std::memmove(valid_ + ((to - base_) >> 3), valid_ + ((from - base_) >> 3), whole / 8);
        to += whole, from += whole, bytes -= whole;
    }
    for (uint64_t i = 0; i < bytes; ++i) {
        uint8_t& eight = valid_[(to + i - base_) >> 3];
        const auto bit = static_cast<uint8_t>(1u << ((to + i - base_) & 7));
        eight = static_cast<uint8_t>(written(from + i, 1) ? eight | bit : eight & ~bit);
    }
}

std::string Memory::describe(uint64_t address) const {
    const Allocation* found = find(address);
    if (found == nullptr) {
        // the granule before may tell whose end was passed
        found = find(address - (1u << GRANULE_BITS));
        if (found == nullptr || found->kind == Kind::registered) return "no allocation is there";
    }
    std::string text = "allocation " + std::to_string(found->serial) + " (" + word(found->kind) + ", " +
                       std::to_string(found->bytes) + " bytes" + (found->live ? "" : ", freed") + ")";
    if (address >= found->end()) return std::to_string(address - found->end()) + " bytes past the end of " + text;
    return "offset " + std::to_string(address - found->begin) + " of " + text;
}

}  // namespace vgpu
