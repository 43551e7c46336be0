// Host functions and callbacks in a stream.
//
// Invariant: they run on the host lane, in their place in the stream; no driver call is allowed inside
// (CUDA_ERROR_NOT_PERMITTED). After a fault a host function is dropped, a callback is called with the error.
#include "capture.h"

using namespace vgpu;

CUDA_API cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
    Call call;
    if (call.error) return call.error;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    Operation operation;
    operation.type = CU_GRAPH_NODE_TYPE_HOST;
    operation.host = true;
    operation.run = [function, data](const Running&) {
        const CallbackScope scope;
        function(data);
        return Result{};
    };
    return enqueue(call, stream, std::move(operation));
}

CUDA_API cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data, unsigned flags) {
    Call call;
    if (call.error) return call.error;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!callback || flags) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    Task task;
    task.host = task.always = true;
    task.work = [callback, handle, data] {
        CUresult status;
        {
            const std::lock_guard lock(driver().mutex);
            status = driver().error;
        }
        const CallbackScope scope;
        callback(handle, status, data);
        return Result{};
    };
    submit(call.state, *stream, std::move(task));
    return CUDA_SUCCESS;
}
