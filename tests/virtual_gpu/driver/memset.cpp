// Filling device memory with a value of 1, 2 or 4 bytes, in one row or many, synchronously or in a stream.
//
// Invariant: the bytes must lie in one live allocation and be aligned to the value. A synchronous fill is done when the
// call returns (the real one may return earlier, which nothing can rely on).
#include <algorithm>

#include "copy.h"

using namespace vgpu;

namespace {

struct Fill {
    uint64_t to = 0, pitch = 0, width = 0, height = 1;  // width in values
};

template <class Value>
Operation operation_of(Driver& state, const Fill& fill, Value value) {
    Operation operation;
    operation.type = CU_GRAPH_NODE_TYPE_MEMSET;
    operation.run = [&state, fill, value](const Running&) {
        for (uint64_t y = 0; y < fill.height; ++y) {
            const uint64_t row = fill.to + y * fill.pitch;
            std::fill_n(reinterpret_cast<Value*>(row), fill.width, value);
            state.memory->mark(row, fill.width * sizeof(Value));
        }
        return Result{};
    };
    return operation;
}

template <class Value>
CUresult fill_with(const Fill& fill, Value value, bool in_stream, CUstream handle) {
    Call call;
    if (call.error) return call.error;
    const auto stream = in_stream ? find_stream(call, handle) : call.context->legacy;
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!fill.width || !fill.height) return CUDA_SUCCESS;
    const uint64_t row = fill.width * sizeof(Value);
    if (fill.width > UINT64_MAX / sizeof(Value) || fill.to % sizeof(Value)) return CUDA_ERROR_INVALID_VALUE;
    if (fill.height > 1 && (fill.pitch < row || fill.pitch % sizeof(Value))) return CUDA_ERROR_INVALID_VALUE;
    uint64_t extent;
    if (!extent_of(fill.height, fill.height > 1 ? fill.pitch : 0, row, extent)) return CUDA_ERROR_INVALID_VALUE;
    if (!reachable(call.state, Side::device, fill.to, extent)) return CUDA_ERROR_INVALID_VALUE;
    Operation operation = operation_of(call.state, fill, value);
    return in_stream ? enqueue(call, stream, std::move(operation)) : perform(call, std::move(operation));
}

}  // namespace

CUDA_API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return fill_with<uint8_t>({to, 0, count}, value, false, nullptr);
}
CUDA_API cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
    return fill_with<uint16_t>({to, 0, count}, value, false, nullptr);
}
CUDA_API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    return fill_with<uint32_t>({to, 0, count}, value, false, nullptr);
}
CUDA_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill_with<uint8_t>({to, 0, count}, value, true, stream);
}
CUDA_API cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    return fill_with<uint16_t>({to, 0, count}, value, true, stream);
}
CUDA_API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return fill_with<uint32_t>({to, 0, count}, value, true, stream);
}
CUDA_API cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
    return fill_with<uint8_t>({to, pitch, width, height}, value, false, nullptr);
}
CUDA_API cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
    return fill_with<uint16_t>({to, pitch, width, height}, value, false, nullptr);
}
CUDA_API cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
    return fill_with<uint32_t>({to, pitch, width, height}, value, false, nullptr);
}
CUDA_API cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream) {
    return fill_with<uint8_t>({to, pitch, width, height}, value, true, stream);
}
CUDA_API cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                            CUstream stream) {
    return fill_with<uint16_t>({to, pitch, width, height}, value, true, stream);
}
CUDA_API cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height,
                            CUstream stream) {
    return fill_with<uint32_t>({to, pitch, width, height}, value, true, stream);
}
