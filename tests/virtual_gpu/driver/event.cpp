// Events: record, wait, query, elapsed time.
//
// Invariant: who waits for an event waits for its last record at the time of the call; times are taken on the device
// lane in the order of the stream.
#include <algorithm>

#include "capture.h"

using namespace vgpu;

namespace {

// An event that was recorded in a capture stands for nothing that runs.
CUresult refuse_captured(const Event& event) {
    if (!event.capture) return CUDA_SUCCESS;
    return invalidate(*event.capture, CUDA_ERROR_CAPTURED_EVENT);
}

// A capturing stream that waits for an event of its own capture, or a stream that thereby joins it.
CUresult wait_in_capture(Stream& stream, const std::shared_ptr<Stream>& self, const Event& event) {
    if (!event.capture) {
        if (!event.record) return CUDA_SUCCESS;
        return invalidate(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    if (event.capture->ended) {
        if (stream.capture) invalidate(*stream.capture, CUDA_SUCCESS);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (event.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream.capture && stream.capture != event.capture) {
        invalidate(*stream.capture, CUDA_SUCCESS);
        return invalidate(*event.capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (self == stream.context->legacy) return invalidate(*event.capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (!stream.capture) {
        stream.capture = event.capture;
        event.capture->streams.push_back(self);
    }
    for (Node* node : event.nodes)
        if (std::find(stream.ends.begin(), stream.ends.end(), node) == stream.ends.end()) stream.ends.push_back(node);
    return CUDA_SUCCESS;
}

}  // namespace

CUDA_API cuEventCreate(CUevent* out, unsigned flags) {
    Call call;
    if (call.error) return call.error;
    if (!out || flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
    auto event = std::make_shared<Event>();
    event->context = call.context;
    event->flags = flags;
    *out = call.state.events.add(std::move(event));
    return CUDA_SUCCESS;
}

CUDA_API cuEventDestroy_v2(CUevent handle) {
    Call call;
    if (call.error) return call.error;
    return call.state.events.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUDA_API cuEventDestroy(CUevent handle) { return cuEventDestroy_v2(handle); }

CUDA_API cuEventRecord(CUevent handle, CUstream stream_handle) {
    Call call;
    if (call.error) return call.error;
    const auto event = call.state.events.find(handle);
    const auto stream = find_stream(call, stream_handle);
    if (!event || !stream || event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) {
        if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        event->capture = stream->capture;
        event->nodes = stream->ends;
        event->record = nullptr;
        return CUDA_SUCCESS;
    }
    if (stream == call.context->legacy)
        if (const CUresult broken = end_captures_that_legacy_work_breaks(call.state, *call.context)) return broken;
    event->capture = nullptr;
    event->record = std::make_shared<Record>();
    Task task;
    task.always = true;
    task.work = [record = event->record] {
        record->time_ns = now_ns();
        return Result{};
    };
    event->record->ticket = submit(call.state, *stream, std::move(task));
    return CUDA_SUCCESS;
}

CUDA_API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    return flags ? CUDA_ERROR_NOT_SUPPORTED : cuEventRecord(event, stream);  // external events: not done here
}

CUDA_API cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
    Call call;
    if (call.error) return call.error;
    const auto event = call.state.events.find(handle);
    const auto stream = find_stream(call, stream_handle);
    if (!event || !stream) return CUDA_ERROR_INVALID_HANDLE;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture || event->capture) return wait_in_capture(*stream, stream, *event);
    if (!event->record) return CUDA_SUCCESS;
    if (stream == call.context->legacy)
        if (const CUresult broken = end_captures_that_legacy_work_breaks(call.state, *call.context)) return broken;
    Task task;
    task.always = true;
    task.after.push_back(event->record->ticket);
    task.work = [] { return Result{}; };
    submit(call.state, *stream, std::move(task));
    return CUDA_SUCCESS;
}

CUDA_API cuEventQuery(CUevent handle) {
    Call call;
    if (call.error) return call.error;
    const auto event = call.state.events.find(handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult refused = refuse_captured(*event)) return refused;
    return !event->record || event->record->ticket.done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_API cuEventSynchronize(CUevent handle) {
    Call call;
    if (call.error) return call.error;
    const auto event = call.state.events.find(handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult refused = refuse_captured(*event)) return refused;
    if (event->record) {
        const Ticket ticket = event->record->ticket;
        call.state.executor.wait(call.lock, ticket);
    }
    return call.outcome();
}

CUDA_API cuEventElapsedTime(float* milliseconds, CUevent first, CUevent second) {
    Call call;
    if (call.error) return call.error;
    const auto begin = call.state.events.find(first), end = call.state.events.find(second);
    if (!begin || !end) return CUDA_ERROR_INVALID_HANDLE;
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    if ((begin->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
    if (begin->capture || end->capture || !begin->record || !end->record) return CUDA_ERROR_INVALID_HANDLE;
    if (!begin->record->ticket.done() || !end->record->ticket.done()) return CUDA_ERROR_NOT_READY;
    *milliseconds = static_cast<float>(static_cast<double>(end->record->time_ns - begin->record->time_ns) * 1e-6);
    return CUDA_SUCCESS;
}
CUDA_API cuEventElapsedTime_v2(float* milliseconds, CUevent first, CUevent second) {
    return cuEventElapsedTime(milliseconds, first, second);
}
