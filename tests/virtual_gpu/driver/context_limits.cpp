// Settings of a context that change nothing here: limits and the cache preference, which are given back; bank sizes.
//
// Invariant: only what a real device of this kind takes is taken.
#include "context.h"

using namespace vgpu;

namespace {

bool supported(int limit) {
    return limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE ||
           limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY;
}

}  // namespace

CUDA_API cuCtxSetLimit(int limit, size_t value) {
    Call call;
    if (call.error) return call.error;
    if (!supported(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    call.context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUDA_API cuCtxGetLimit(size_t* value, int limit) {
    Call call;
    if (call.error) return call.error;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (!supported(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = call.context->limits[limit];
    return CUDA_SUCCESS;
}

CUDA_API cuCtxSetCacheConfig(int preference) {
    Call call;
    if (call.error) return call.error;
    if (preference < 0 || preference > 3) return CUDA_ERROR_INVALID_VALUE;
    call.context->cache_preference = preference;
    return CUDA_SUCCESS;
}

CUDA_API cuCtxGetCacheConfig(int* preference) {
    Call call;
    if (call.error) return call.error;
    if (!preference) return CUDA_ERROR_INVALID_VALUE;
    *preference = call.context->cache_preference;
    return CUDA_SUCCESS;
}

CUDA_API cuCtxSetSharedMemConfig(int size) {
    Call call;
    if (call.error) return call.error;
    return size < 0 || size > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// The banks of compute capability 8.7 are 4 bytes wide, whatever was asked for.
CUDA_API cuCtxGetSharedMemConfig(int* size) {
    Call call;
    if (call.error) return call.error;
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    *size = 1;
    return CUDA_SUCCESS;
}

CUDA_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    Call call;
    if (call.error) return call.error;
    if (least) *least = LEAST_PRIORITY;
    if (greatest) *greatest = GREATEST_PRIORITY;
    return CUDA_SUCCESS;
}
