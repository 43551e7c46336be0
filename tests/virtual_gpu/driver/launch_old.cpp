// The launch interface of CUDA 3: shape and parameters are kept with the function. PyCUDA still uses it for prepared
// calls.
//
// Invariant: the same checks as cuLaunchKernel's.
#include <cstring>

#include "function.h"

using namespace vgpu;

namespace {

CUresult put(CUfunction handle, int offset, const void* data, size_t bytes) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    if (offset < 0 || !data || offset + bytes > static_cast<size_t>(PARAMETER_BYTES)) return CUDA_ERROR_INVALID_VALUE;
    auto& parameters = hold.function->parameters;
    parameters.resize(PARAMETER_BYTES);
    memcpy(&parameters[static_cast<size_t>(offset)], data, bytes);
    return CUDA_SUCCESS;
}

CUresult launch_grid(CUfunction handle, int width, int height, CUstream stream) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    const Function& function = *hold.function;
    if (width < 1 || height < 1 || function.parameter_size < function.kernel->parameter_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    std::vector<uint8_t> parameters = function.parameters;
    parameters.resize(function.kernel->parameter_bytes);
    const Shape shape{
        {static_cast<uint32_t>(width), static_cast<uint32_t>(height), 1}, function.block, function.shared};
    return launch(call, hold, shape, std::move(parameters), stream);
}

}  // namespace

CUDA_API cuFuncSetBlockShape(CUfunction handle, int x, int y, int z) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    if (x < 1 || y < 1 || z < 1) return CUDA_ERROR_INVALID_VALUE;
    hold.function->block = {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
    return CUDA_SUCCESS;
}

CUDA_API cuFuncSetSharedSize(CUfunction handle, unsigned bytes) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    hold.function->shared = bytes;
    return CUDA_SUCCESS;
}

CUDA_API cuParamSetSize(CUfunction handle, unsigned bytes) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    if (bytes > static_cast<unsigned>(PARAMETER_BYTES)) return CUDA_ERROR_INVALID_VALUE;
    hold.function->parameter_size = bytes;
    return CUDA_SUCCESS;
}

CUDA_API cuParamSetv(CUfunction function, int offset, void* data, unsigned bytes) {
    return put(function, offset, data, bytes);
}
CUDA_API cuParamSeti(CUfunction function, int offset, unsigned value) {
    return put(function, offset, &value, sizeof value);
}
CUDA_API cuParamSetf(CUfunction function, int offset, float value) {
    return put(function, offset, &value, sizeof value);
}

CUDA_API cuLaunch(CUfunction function) { return launch_grid(function, 1, 1, nullptr); }
CUDA_API cuLaunchGrid(CUfunction function, int width, int height) {
    return launch_grid(function, width, height, nullptr);
}
CUDA_API cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    return launch_grid(function, width, height, stream);
}
