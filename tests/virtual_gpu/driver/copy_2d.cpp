// Two- and three-dimensional copies: boxes of rows with a pitch on each side.
//
// Invariant: every row of both sides is checked before anything is queued; CUDA arrays are not supported.
#include <algorithm>

#include "copy.h"

using namespace vgpu;

namespace {

// One side of a box: the address of row y in slice z is base + (z * height + y) * pitch.
struct Face {
    Side side = Side::host;
    uint64_t base = 0, pitch = 0, height = 0;
    uint64_t row(uint64_t y, uint64_t z) const { return base + (z * height + y) * pitch; }
};

struct Box {
    Face to, from;
    uint64_t width = 0, height = 0, depth = 1;
};

CUresult refuse_array(CUmemorytype type, CUarray array) {
    if (type != CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS;
    return array ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUresult face_of(Face& face, CUmemorytype type, const void* host, CUdeviceptr device, uint64_t pitch, uint64_t x,
                 uint64_t y, uint64_t z, uint64_t height, const Box& box) {
    if (type < CU_MEMORYTYPE_HOST || type > CU_MEMORYTYPE_UNIFIED) return CUDA_ERROR_INVALID_VALUE;
    face.side = type == CU_MEMORYTYPE_HOST ? Side::host : type == CU_MEMORYTYPE_DEVICE ? Side::device : Side::either;
    uint64_t right;
    if (__builtin_add_overflow(x, box.width, &right)) return CUDA_ERROR_INVALID_VALUE;
    face.pitch = pitch ? pitch : right;
    face.height = height ? height : box.height;
    if (face.pitch < right || face.height < box.height) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t start = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
    if (!start) return CUDA_ERROR_INVALID_VALUE;
    uint64_t before;  // of the box, in rows and then in bytes
    if (__builtin_mul_overflow(z, face.height, &before) || __builtin_add_overflow(before, y, &before) ||
        __builtin_mul_overflow(before, face.pitch, &before) || __builtin_add_overflow(before, x, &before) ||
        __builtin_add_overflow(start, before, &face.base))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

// From the first byte of the first row to the last of the last; false where that is more than 64 bits.
bool extent(const Face& face, const Box& box, uint64_t& bytes) {
    uint64_t rows;
    return !__builtin_mul_overflow(box.depth - 1, face.height, &rows) && !__builtin_add_overflow(rows, box.height, &rows) &&
           extent_of(rows, face.pitch, box.width, bytes);
}

Operation operation_of(Driver& state, const Box& box) {
    Operation operation;
    operation.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    operation.run = [&state, box](const Running&) {
        for (uint64_t z = 0; z < box.depth; ++z)
            for (uint64_t y = 0; y < box.height; ++y)
                copy_row(*state.memory, box.to.row(y, z), box.from.row(y, z), box.width);
        state.statistics.copy(box.width * box.height * box.depth);
        return Result{};
    };
    return operation;
}

// Pageable memory is read or written before the call returns, by doing the copy to its end.
CUresult copy_box(const Box& box, CUresult error, bool in_stream, CUstream handle) {
    Call call;
    if (call.error) return call.error;
    if (error) return error;
    const auto stream = in_stream ? find_stream(call, handle) : call.context->legacy;
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!box.width || !box.height || !box.depth) return CUDA_SUCCESS;
    bool pageable = false;
    for (const Face* face : {&box.to, &box.from}) {
        uint64_t bytes;
        if (!extent(*face, box, bytes) || !reachable(call.state, face->side, face->base, bytes))
            return CUDA_ERROR_INVALID_VALUE;
        pageable = pageable || (face->side != Side::device && !call.state.memory->find(face->base));
    }
    if (!in_stream) return perform(call, operation_of(call.state, box));
    const bool finish = pageable && !stream->capture;
    if (const CUresult failed = enqueue(call, stream, operation_of(call.state, box))) return failed;
    if (!finish) return CUDA_SUCCESS;
    call.state.executor.wait(call.lock, stream->queue->last(stream->queue));
    return call.outcome();
}

CUresult copy_2d(const CUDA_MEMCPY2D* c, bool in_stream, CUstream stream) {
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    Box box;
    box.width = c->WidthInBytes;
    box.height = c->Height;
    CUresult error = refuse_array(c->srcMemoryType, c->srcArray);
    if (!error) error = refuse_array(c->dstMemoryType, c->dstArray);
    if (!error)
        error = face_of(box.from, c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch, c->srcXInBytes, c->srcY, 0,
                        0, box);
    if (!error)
        error = face_of(box.to, c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch, c->dstXInBytes, c->dstY, 0, 0,
                        box);
    return copy_box(box, error, in_stream, stream);
}

CUresult copy_3d(const CUDA_MEMCPY3D* c, bool in_stream, CUstream stream) {
    if (!c || c->reserved0 || c->reserved1 || c->srcLOD || c->dstLOD) return CUDA_ERROR_INVALID_VALUE;
    Box box;
    box.width = c->WidthInBytes;
    box.height = c->Height;
    box.depth = c->Depth;
    if (box.depth > 1 && (!c->srcHeight || !c->dstHeight)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t from_bottom, to_bottom;
    if (__builtin_add_overflow(c->srcY, box.height, &from_bottom) || __builtin_add_overflow(c->dstY, box.height, &to_bottom))
        return CUDA_ERROR_INVALID_VALUE;
    const uint64_t from_height = std::max<uint64_t>(c->srcHeight, box.depth > 1 ? 0 : from_bottom);
    const uint64_t to_height = std::max<uint64_t>(c->dstHeight, box.depth > 1 ? 0 : to_bottom);
    CUresult error = refuse_array(c->srcMemoryType, c->srcArray);
    if (!error) error = refuse_array(c->dstMemoryType, c->dstArray);
    if (!error)
        error = face_of(box.from, c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch, c->srcXInBytes, c->srcY,
                        c->srcZ, from_height, box);
    if (!error)
        error = face_of(box.to, c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch, c->dstXInBytes, c->dstY,
                        c->dstZ, to_height, box);
    return copy_box(box, error, in_stream, stream);
}

}  // namespace

CUDA_API cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) { return copy_2d(copy, false, nullptr); }
CUDA_API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) { return copy_2d(copy, false, nullptr); }
CUDA_API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) { return copy_2d(copy, true, stream); }
CUDA_API cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) { return copy_3d(copy, false, nullptr); }
CUDA_API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) { return copy_3d(copy, true, stream); }
