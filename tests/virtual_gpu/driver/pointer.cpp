// What a pointer is: cuPointerGetAttribute(s).
//
// Invariant: a pointer that the driver does not know has no attributes; cuPointerGetAttributes says so with zeros.
#include <cstring>

#include "allocation.h"

using namespace vgpu;

namespace {

template <class Value>
CUresult put(void* data, Value value) {
    memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
}

// A variable belongs to its module's context, all else to the context that allocated it.
Context* owner(const Driver& state, const Allocation& allocation) {
    if (const auto* block = find_block(state, allocation.begin)) return block->second.context;
    Context* context = nullptr;
    state.modules.each([&](const LoadedModule& loaded) {
        if (loaded.module->owns(allocation.begin)) context = loaded.context;
    });
    return context;
}

CUresult attribute_of(Call& call, void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    const Allocation* found = call.state.memory->find(pointer);
    if (!found || !found->live || pointer - found->begin >= found->bytes) return CUDA_ERROR_INVALID_VALUE;
    const bool host = found->kind == Kind::pinned || found->kind == Kind::registered;
    const bool both = host || found->kind == Kind::managed;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: return put(data, reinterpret_cast<CUcontext>(owner(call.state, *found)));
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return put(data, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put(data, pointer);
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            return both ? put(data, reinterpret_cast<void*>(pointer)) : CUDA_ERROR_INVALID_VALUE;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put(data, static_cast<unsigned long long>(found->serial));
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return put(data, static_cast<unsigned>(found->kind == Kind::managed));
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(data, 0);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(data, reinterpret_cast<void*>(found->begin));
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put(data, static_cast<size_t>(found->bytes));
        case CU_POINTER_ATTRIBUTE_MAPPED: return put(data, 1u);
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

}  // namespace

CUDA_API cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    Call call(Needs::initialised);
    return call.error ? call.error : attribute_of(call, data, attribute, pointer);
}

CUDA_API cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr pointer) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
        const CUresult error = attribute_of(call, data[i], attributes[i], pointer);
        if (error == CUDA_ERROR_NOT_SUPPORTED) return error;
        if (error && attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) put(data[i], CUmemorytype{});
        else if (error) put(data[i], uint32_t{0});
    }
    return CUDA_SUCCESS;
}
