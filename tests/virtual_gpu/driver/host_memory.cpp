// Page-locked host memory: allocated, or registered where it is. Device and host use the same address.
//
// Invariant: a device pointer is given only for memory that was asked to be mapped or that unified addressing maps,
// which on this device is all of it.
#include <cstdio>
#include <fstream>
#include <string>

#include "allocation.h"

using namespace vgpu;

namespace {

// Whether all of these bytes are mapped for reading and writing, as they must be to be page-locked.
bool mapped(uint64_t address, uint64_t bytes) {
    if (bytes > UINT64_MAX - address) return false;
    std::ifstream maps("/proc/self/maps");
    std::string line;
    uint64_t reached = address;
    while (reached < address + bytes && std::getline(maps, line)) {
        unsigned long long begin = 0, end = 0;
        char rights[5] = "";
        if (sscanf(line.c_str(), "%llx-%llx %4s", &begin, &end, rights) != 3 || end <= reached) continue;
        if (begin > reached || rights[0] != 'r' || rights[1] != 'w') return false;
        reached = end;
    }
    return reached >= address + bytes;
}

}  // namespace

CUDA_API cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
    Call call;
    if (call.error) return call.error;
    constexpr unsigned KNOWN = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!out || flags & ~KNOWN) return CUDA_ERROR_INVALID_VALUE;
    uint64_t address = 0;
    const CUresult error = allocate(call, &address, bytes, Kind::pinned, flags);
    if (!error) *out = reinterpret_cast<void*>(address);
    return error;
}
CUDA_API cuMemAllocHost_v2(void** out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }
CUDA_API cuMemAllocHost(void** out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }

CUDA_API cuMemFreeHost(void* pointer) {
    Call call;
    if (call.error) return call.error;
    return release(call, reinterpret_cast<uint64_t>(pointer), true);
}

CUDA_API cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
    Call call;
    if (call.error) return call.error;
    if (!pointer || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (flags & (CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)) return CUDA_ERROR_NOT_SUPPORTED;
    if (flags & ~(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    if (!mapped(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const Allocation* owner = call.state.memory->find(address);
    if ((owner && owner->live) || !call.state.memory->register_host(address, bytes))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    call.state.blocks[address] = {call.context, Kind::registered, bytes, flags};
    return CUDA_SUCCESS;
}
CUDA_API cuMemHostRegister(void* pointer, size_t bytes, unsigned flags) {
    return cuMemHostRegister_v2(pointer, bytes, flags);
}

CUDA_API cuMemHostUnregister(void* pointer) {
    Call call;
    if (call.error) return call.error;
    const uint64_t address = reinterpret_cast<uint64_t>(pointer);
    const auto block = call.state.blocks.find(address);
    if (block == call.state.blocks.end() || block->second.kind != Kind::registered)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (const CUresult error = call.state.drain(call.lock, *call.context)) return error;
    call.state.blocks.erase(address);
    call.state.memory->unregister_host(address);
    return CUDA_SUCCESS;
}

CUDA_API cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned flags) {
    Call call;
    if (call.error) return call.error;
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    const auto* block = find_block(call.state, reinterpret_cast<uint64_t>(pointer));
    if (!block || (block->second.kind != Kind::pinned && block->second.kind != Kind::registered))
        return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<uint64_t>(pointer);
    return CUDA_SUCCESS;
}

CUDA_API cuMemHostGetFlags(unsigned* flags, void* pointer) {
    Call call;
    if (call.error) return call.error;
    const auto* block = find_block(call.state, reinterpret_cast<uint64_t>(pointer));
    if (!flags || !block || block->second.kind != Kind::pinned) return CUDA_ERROR_INVALID_VALUE;
    *flags = block->second.flags | CU_MEMHOSTALLOC_DEVICEMAP;  // unified addressing maps all of it
    return CUDA_SUCCESS;
}
