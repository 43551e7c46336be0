// Device and managed memory: allocation, freeing, what is free, whose address it is.
//
// Invariant: freeing waits for all work of the context first, as the real driver does, so that no kernel loses its
// memory.
#include "allocation.h"

#include "capture.h"

using namespace vgpu;

namespace vgpu {

CUresult allocate(Call& call, uint64_t* out, uint64_t bytes, Kind kind, unsigned flags) {
    if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult forbidden = call.forbid_in_capture()) return forbidden;
    const Injection injection = call.state.control.take(Target::allocation);
    if (injection.fault) return injection.fault;
    const uint64_t address = call.state.memory->allocate(bytes, kind);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    // The host writes to these without the driver's knowledge: what it has written cannot be told apart.
    if (kind != Kind::device) call.state.memory->mark(address, bytes);
    call.state.blocks[address] = {call.context, kind, bytes, flags};
    call.state.statistics.memory_used(call.state.memory->used());
    *out = address;
    return CUDA_SUCCESS;
}

CUresult release(Call& call, uint64_t address, bool host) {
    const auto block = call.state.blocks.find(address);
    if (block == call.state.blocks.end() || (block->second.kind == Kind::pinned) != host ||
        block->second.kind == Kind::registered)
        return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult forbidden = call.forbid_in_capture()) return forbidden;
    if (const CUresult error = call.state.drain(call.lock, *call.context)) return error;
    call.state.blocks.erase(address);
    call.state.memory->free(address);
    return CUDA_SUCCESS;
}

const std::pair<const uint64_t, Block>* find_block(const Driver& state, uint64_t address) {
    auto after = state.blocks.upper_bound(address);
    if (after == state.blocks.begin()) return nullptr;
    --after;
    return address - after->first < after->second.bytes ? &*after : nullptr;
}

}  // namespace vgpu

CUDA_API cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
    Call call;
    return call.error ? call.error : allocate(call, out, bytes, Kind::device, 0);
}

CUDA_API cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element_bytes) {
    Call call;
    if (call.error) return call.error;
    if (!pitch || !width || !height) return CUDA_ERROR_INVALID_VALUE;
    if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) return CUDA_ERROR_INVALID_VALUE;
    if (width > UINT64_MAX - 511) return CUDA_ERROR_OUT_OF_MEMORY;
    *pitch = (width + 511) / 512 * 512;
    if (height > UINT64_MAX / *pitch) return CUDA_ERROR_OUT_OF_MEMORY;
    return allocate(call, out, *pitch * height, Kind::device, 0);
}

CUDA_API cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
    Call call;
    if (call.error) return call.error;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    return allocate(call, out, bytes, Kind::managed, flags);
}

// Attaching managed memory to a stream changes who may touch it when; here everyone always may.
CUDA_API cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t, unsigned flags) {
    Call call;
    if (call.error) return call.error;
    if (!find_stream(call, stream)) return CUDA_ERROR_INVALID_HANDLE;
    const auto* block = find_block(call.state, address);
    if (!block || block->second.kind != Kind::managed) return CUDA_ERROR_INVALID_VALUE;
    const bool known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST || flags == CU_MEM_ATTACH_SINGLE;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API cuMemFree_v2(CUdeviceptr address) {
    Call call;
    if (call.error) return call.error;
    return address ? release(call, address, false) : CUDA_SUCCESS;
}

CUDA_API cuMemGetInfo_v2(size_t* free, size_t* total) {
    Call call;
    if (call.error) return call.error;
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    *total = call.state.memory->capacity();
    *free = *total - call.state.memory->used();
    return CUDA_SUCCESS;
}

CUDA_API cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
    Call call;
    if (call.error) return call.error;
    const Allocation* found = call.state.memory->find(address);
    if (!found || !found->live || address < found->begin || address >= found->end()) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = found->begin;
    if (bytes) *bytes = found->bytes;
    return CUDA_SUCCESS;
}
