// cuStreamBeginCapture to cuStreamEndCapture, and what ends a capture badly (capture.h).
#include "capture.h"

#include <algorithm>

using namespace vgpu;

namespace vgpu {
namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

std::vector<std::shared_ptr<Capture>> active_captures(Driver& state) {
    std::vector<std::shared_ptr<Capture>> active;
    std::erase_if(state.captures, [](const auto& weak) { return weak.expired(); });
    for (const auto& weak : state.captures)
        if (const auto capture = weak.lock(); capture && !capture->ended) active.push_back(capture);
    return active;
}

// Whether an unsafe call of this thread is forbidden by the capture: cuThreadExchangeStreamCaptureMode's table.
bool sees_unsafe_calls(const Capture& capture) {
    const bool mine = capture.thread == std::this_thread::get_id();
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (mine) return true;
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

void finish(Capture& capture) {
    capture.ended = true;
    for (const auto& weak : capture.streams)
        if (const auto stream = weak.lock()) {
            stream->capture.reset();
            stream->ends.clear();
        }
}

// Whether all work of the other streams leads to the origin.
bool joined(const Capture& capture, const Stream& origin) {
    std::set<const Node*> reached;
    std::vector<const Node*> waiting(origin.ends.begin(), origin.ends.end());
    while (!waiting.empty()) {
        const Node* node = waiting.back();
        waiting.pop_back();
        if (reached.insert(node).second) waiting.insert(waiting.end(), node->after.begin(), node->after.end());
    }
    for (const auto& weak : capture.streams) {
        const auto stream = weak.lock();
        if (!stream) return false;
        for (const Node* end : stream->ends)
            if (!reached.count(end)) return false;
    }
    return true;
}

}  // namespace

CUresult invalidate(Capture& capture, CUresult code) {
    capture.invalid = true;
    return code;
}

CUresult capture_operation(Stream& stream, Operation operation) {
    Capture& capture = *stream.capture;
    if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture.graph->nodes.push_back({std::move(operation), stream.ends});
    stream.ends = {&capture.graph->nodes.back()};
    return CUDA_SUCCESS;
}

CUresult end_captures_that_see_unsafe_calls(Driver& state) {
    CUresult answer = CUDA_SUCCESS;
    for (const auto& capture : active_captures(state))
        if (sees_unsafe_calls(*capture)) answer = invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return answer;
}

CUresult end_captures_that_legacy_work_breaks(Driver& state, const Context& context) {
    CUresult answer = CUDA_SUCCESS;
    for (const auto& capture : active_captures(state))
        for (const auto& weak : capture->streams) {
            const auto stream = weak.lock();
            if (stream && stream->context == &context && !(stream->flags & CU_STREAM_NON_BLOCKING))
                answer = invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
    return answer;
}

void end_captures_of(Driver& state, const Context& context) {
    for (const auto& capture : active_captures(state))
        if (capture->graph->context == &context) finish(*capture);
}

}  // namespace vgpu

CUDA_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!mode || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    std::swap(thread_mode, *mode);
    return CUDA_SUCCESS;
}

CUDA_API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    Call call;
    if (call.error) return call.error;
    if (mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    const auto capture = std::make_shared<Capture>();
    capture->id = call.state.next_id++;
    capture->graph->context = stream->context;
    capture->origin = stream;
    capture->streams = {stream};
    capture->thread = std::this_thread::get_id();
    capture->mode = mode;
    stream->capture = capture;
    call.state.captures.push_back(capture);
    return CUDA_SUCCESS;
}

// The first form of the call, of CUDA 10.0.
CUDA_API cuStreamBeginCapture(CUstream handle) {
    return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUDA_API cuStreamEndCapture(CUstream handle, CUgraph* out) {
    Call call;
    if (call.error) return call.error;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = nullptr;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    const auto capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin.lock() != stream) return invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
        finish(*capture);  // refused, and over all the same
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    const bool invalid = capture->invalid, complete = joined(*capture, *stream);
    finish(*capture);
    if (invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!complete) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *out = call.state.graphs.add(capture->graph);
    return CUDA_SUCCESS;
}

CUDA_API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    Call call;
    if (call.error) return call.error;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                         : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUDA_API cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, size_t* count) {
    if (const CUresult error = cuStreamIsCapturing(handle, status)) return error;
    Call call;
    if (call.error) return call.error;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!stream->capture) return CUDA_SUCCESS;
    if (id) *id = stream->capture->id;
    // The graph is the capture's own until it ends; no function here takes its handle before that.
    if (graph) *graph = reinterpret_cast<CUgraph>(stream->capture->graph.get());
    if (dependencies) *dependencies = reinterpret_cast<const CUgraphNode*>(stream->ends.data());
    if (count) *count = stream->ends.size();
    return CUDA_SUCCESS;
}

CUDA_API cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, uint64_t* id) {
    return cuStreamGetCaptureInfo_v2(handle, status, id, nullptr, nullptr, nullptr);
}
