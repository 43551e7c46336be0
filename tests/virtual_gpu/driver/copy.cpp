// One-dimensional copies, synchronous and in a stream (copy.h).
//
// As the real driver: a copy in a stream from pageable memory has read it when the call returns, one to pageable memory
// has been done. Page-locked memory is read and written when the copy's turn comes, so a buffer reused too early shows.
#include "copy.h"

#include <cstring>

using namespace vgpu;

namespace vgpu {

bool page_locked(const Driver& state, uint64_t address, uint64_t bytes) {
    const Allocation* found = state.memory->find(address);
    return found && !of_device(found->kind) && state.memory->holds(address, bytes);
}

bool reachable(const Driver& state, Side side, uint64_t address, uint64_t bytes) {
    if (!address || address + bytes < address) return false;
    const Allocation* found = state.memory->find(address);
    if (side == Side::device || (side == Side::either && found)) return state.memory->holds(address, bytes);
    // Host memory is the caller's affair, unless the driver knows it.
    if (!found) return true;
    return !of_device(found->kind) && state.memory->holds(address, bytes);
}

void copy_row(Memory& memory, uint64_t to, uint64_t from, uint64_t bytes) {
    memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    const bool known = memory.find(from) != nullptr;
    if (!memory.find(to)) return;
    if (known) memory.copy_marks(to, from, bytes);
    else memory.mark(to, bytes);
}

namespace {

CUresult check(Call& call, const Copy& copy) {
    if (!reachable(call.state, copy.to_side, copy.to, copy.bytes)) return CUDA_ERROR_INVALID_VALUE;
    return reachable(call.state, copy.from_side, copy.from, copy.bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool pageable(const Driver& state, Side side, uint64_t address, uint64_t bytes) {
    return side != Side::device && !state.memory->find(address) && !page_locked(state, address, bytes);
}

Operation operation_of(Driver& state, const Copy& copy) {
    Operation operation;
    operation.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    operation.run = [&state, copy](const Running&) {
        copy_row(*state.memory, copy.to, copy.from, copy.bytes);
        state.statistics.copy(copy.bytes);
        return Result{};
    };
    return operation;
}

// A copy whose source is taken now, into a buffer of its own.
Operation staged_operation_of(Driver& state, const Copy& copy) {
    const auto* begin = reinterpret_cast<const uint8_t*>(copy.from);
    Operation operation;
    operation.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    operation.run = [&state, copy, staged = std::vector<uint8_t>(begin, begin + copy.bytes)](const Running&) {
        copy_row(*state.memory, copy.to, reinterpret_cast<uint64_t>(staged.data()), copy.bytes);
        state.statistics.copy(copy.bytes);
        return Result{};
    };
    return operation;
}

}  // namespace

CUresult copy_now(const Copy& copy) {
    Call call;
    if (call.error) return call.error;
    if (!copy.bytes) return CUDA_SUCCESS;
    if (const CUresult error = check(call, copy)) return error;
    return perform(call, operation_of(call.state, copy));
}

CUresult copy_in_stream(const Copy& copy, CUstream handle) {
    Call call;
    if (call.error) return call.error;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!copy.bytes) return CUDA_SUCCESS;
    if (const CUresult error = check(call, copy)) return error;
    const bool stage = !stream->capture && pageable(call.state, copy.from_side, copy.from, copy.bytes);
    const bool finish = !stream->capture && pageable(call.state, copy.to_side, copy.to, copy.bytes);
    Operation operation = stage ? staged_operation_of(call.state, copy) : operation_of(call.state, copy);
    if (const CUresult error = enqueue(call, stream, std::move(operation))) return error;
    if (!finish) return CUDA_SUCCESS;
    call.state.executor.wait(call.lock, stream->queue->last(stream->queue));
    return call.outcome();
}

}  // namespace vgpu

namespace {

Copy to_device(CUdeviceptr to, const void* from, size_t bytes) {
    return {to, reinterpret_cast<uint64_t>(from), bytes, Side::device, Side::either};
}
// One address space: what is called the host's may be the device's, on this side as on the other.
Copy to_host(void* to, CUdeviceptr from, size_t bytes) {
    return {reinterpret_cast<uint64_t>(to), from, bytes, Side::either, Side::device};
}
Copy on_device(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return {to, from, bytes, Side::device, Side::device}; }
Copy anywhere(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return {to, from, bytes, Side::either, Side::either}; }

}  // namespace

CUDA_API cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    return copy_now(to_device(to, from, bytes));
}
CUDA_API cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) { return copy_now(to_host(to, from, bytes)); }
CUDA_API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_now(on_device(to, from, bytes));
}
CUDA_API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return copy_now(anywhere(to, from, bytes)); }
CUDA_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    return copy_in_stream(to_device(to, from, bytes), stream);
}
CUDA_API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in_stream(to_host(to, from, bytes), stream);
}
CUDA_API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in_stream(on_device(to, from, bytes), stream);
}
CUDA_API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in_stream(anywhere(to, from, bytes), stream);
}
// Contexts share the one device: a copy between two of them is a copy.
CUDA_API cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
    return copy_now(on_device(to, from, bytes));
}
CUDA_API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream) {
    return copy_in_stream(on_device(to, from, bytes), stream);
}
