// Function attributes, the opt-in to more than 48 KB of shared memory, occupancy.
//
// Invariant: an attribute is answered from what the machine decoded; register counts are the machine's lower bound.
#include "function.h"

#include <algorithm>

using namespace vgpu;

namespace vgpu {

FunctionHold find_function(const Driver& state, CUfunction handle) {
    const auto found = state.functions.find(handle);
    if (found == state.functions.end()) return {};
    return {reinterpret_cast<Function*>(handle), found->second};
}

int threads_limit(const Kernel& kernel) {
    const int warps = kernel.registers ? REGISTERS / registers_of_warp(kernel) : THREADS_OF_BLOCK / 32;
    return std::min({static_cast<int>(kernel.max_threads), THREADS_OF_BLOCK, warps * 32});
}

namespace {

// Blocks of this size that one multiprocessor holds at once.
int blocks_at_once(const Function& function, int threads, size_t dynamic_shared) {
    const Kernel& kernel = *function.kernel;
    if (threads > threads_limit(kernel)) return 0;
    const int warps = (threads + 31) / 32;
    if (dynamic_shared > SHARED_OPT_IN || kernel.static_shared + dynamic_shared > SHARED_OPT_IN) return 0;
    const size_t shared = (kernel.static_shared + dynamic_shared + SHARED_RESERVED + 127) / 128 * 128;
    const int by_registers = kernel.registers ? REGISTERS / registers_of_warp(kernel) / warps : BLOCKS;
    return std::min({BLOCKS, WARPS / warps, by_registers, static_cast<int>(SHARED_MULTIPROCESSOR / shared)});
}

}  // namespace
}  // namespace vgpu

CUDA_API cuFuncGetAttribute(int* value, int attribute, CUfunction handle) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    const Kernel& kernel = *hold.function->kernel;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = threads_limit(kernel); break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = static_cast<int>(kernel.static_shared); break;
        case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = 0; break;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = static_cast<int>(kernel.local_bytes); break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = static_cast<int>(kernel.registers); break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = 87; break;  // of the virtual architecture, not of the language
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 87; break;
        case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = hold.function->dynamic_shared_limit; break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = -1; break;  // no preference
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUDA_API cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        return value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    if (value < 0 || value > SHARED_OPT_IN - static_cast<int>(hold.function->kernel->static_shared))
        return CUDA_ERROR_INVALID_VALUE;
    hold.function->dynamic_shared_limit = value;
    return CUDA_SUCCESS;
}

CUDA_API cuFuncSetCacheConfig(CUfunction handle, int preference) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    if (preference < 0 || preference > 3) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;  // a hint that changes nothing here
}

CUDA_API cuFuncGetName(const char** name, CUfunction handle) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = hold.function->kernel->name.c_str();
    return CUDA_SUCCESS;
}

CUDA_API cuFuncGetModule(CUmodule* out, CUfunction handle) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUmodule>(hold.module.get());
    return CUDA_SUCCESS;
}

CUDA_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int threads,
                                                     size_t dynamic_shared) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || threads < 1) return CUDA_ERROR_INVALID_VALUE;
    *blocks = blocks_at_once(*hold.function, threads, dynamic_shared);
    return CUDA_SUCCESS;
}
CUDA_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction handle, int threads,
                                                              size_t dynamic_shared, unsigned flags) {
    constexpr unsigned DISABLE_CACHING_OVERRIDE = 1;
    if (flags & ~DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, threads, dynamic_shared);
}
