// What a launch did, counted exactly: a budget that tests can hold kernels to. Says nothing of latency, caches or clocks.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace vgpu {

struct Counters {
    uint64_t warp_instructions = 0, divergent_branches = 0, barriers = 0;
    uint64_t global_load_requests = 0, global_load_sectors = 0;    // a request: one warp instruction; sectors: 32 bytes
    uint64_t global_store_requests = 0, global_store_sectors = 0;
    uint64_t async_copy_requests = 0, async_copy_sectors = 0;
    // a wavefront: 128 bytes, one word a bank; what is above the least that the bytes need are bank conflicts
    uint64_t shared_load_requests = 0, shared_load_wavefronts = 0, shared_load_least = 0;
    uint64_t shared_store_requests = 0, shared_store_wavefronts = 0, shared_store_least = 0;
    std::map<std::string, uint64_t> mix;                           // warp instructions by form

    void add(const Counters& other);
    std::string json() const;  // one object, these names
};

}  // namespace vgpu
