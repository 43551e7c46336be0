// Streams: creation, order against the legacy default stream, waiting, callbacks.
//
// Invariant: work in the legacy stream comes after all work submitted before it to blocking streams, and the other way
// round; streams created NON_BLOCKING take no part in that.
#include "capture.h"

using namespace vgpu;

namespace vgpu {

std::shared_ptr<Stream> new_stream(Driver& state, Context& context, unsigned flags, int priority, bool named) {
    auto stream = std::make_shared<Stream>();
    stream->context = &context;
    stream->id = state.next_id++;
    stream->flags = flags;
    stream->priority = priority;
    context.queues.emplace_back(stream->queue, named && !(flags & CU_STREAM_NON_BLOCKING));
    return stream;
}

std::shared_ptr<Stream> find_stream(Call& call, CUstream handle) {
    Context& context = *call.context;
    if (!handle || handle == CU_STREAM_LEGACY) return context.legacy;
    if (handle == CU_STREAM_PER_THREAD) {
        auto& stream = context.per_thread[std::this_thread::get_id()];
        if (!stream) stream = new_stream(call.state, context, CU_STREAM_DEFAULT, 0, true);
        return stream;
    }
    return call.state.streams.find(handle);
}

Ticket submit(Driver& state, Stream& stream, Task task) {
    Context& context = *stream.context;
    if (&stream == context.legacy.get()) {
        for (const auto& [queue, blocking] : context.queues)
            if (blocking) task.after.push_back(queue->last(queue));
    } else if (!(stream.flags & CU_STREAM_NON_BLOCKING)) {
        task.after.push_back(context.legacy->queue->last(context.legacy->queue));
    }
    return state.executor.submit(stream.queue, std::move(task));
}

Task task_of(std::function<Result(const Running&)> run, const Injection& injection) {
    Task task;
    if (injection.hang.empty()) {
        task.work = [run = std::move(run), injection] { return run(Running{injection}); };
        return task;
    }
    const int64_t end_ns = injection.timeout_ms ? now_ns() + static_cast<int64_t>(injection.timeout_ms) * 1'000'000 : 0;
    const auto timed_out = std::make_shared<bool>(false);
    task.held = [line = injection.hang, end_ns, timed_out] {
        if (!driver().control.still_held(line)) return false;
        *timed_out = end_ns && now_ns() >= end_ns;
        return !*timed_out;
    };
    task.work = [run = std::move(run), injection, timed_out] {
        return *timed_out ? Result{CUDA_ERROR_LAUNCH_TIMEOUT, "injected '" + injection.hang + "'"}
                          : run(Running{injection});
    };
    return task;
}

CUresult enqueue(Call& call, const std::shared_ptr<Stream>& stream, Operation operation, bool launch) {
    if (stream->capture) return capture_operation(*stream, std::move(operation));
    if (stream == stream->context->legacy)
        if (const CUresult broken = end_captures_that_legacy_work_breaks(call.state, *stream->context)) return broken;
    if (launch) call.state.statistics.single_launch();
    const Injection injection = launch ? call.state.control.take(Target::launch) : Injection{};
    Task task = task_of(std::move(operation.run), injection);
    task.host = operation.host;
    submit(call.state, *stream, std::move(task));
    return CUDA_SUCCESS;
}

CUresult perform(Call& call, Operation operation) {
    const auto legacy = call.context->legacy;
    if (const CUresult broken = end_captures_that_legacy_work_breaks(call.state, *call.context)) return broken;
    if (const CUresult forbidden = call.forbid_in_capture()) return forbidden;
    if (const CUresult error = enqueue(call, legacy, std::move(operation))) return error;
    call.state.executor.wait(call.lock, legacy->queue->last(legacy->queue));
    return call.outcome();
}

}  // namespace vgpu

CUDA_API cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
    Call call;
    if (call.error) return call.error;
    if (!out || flags & ~CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    priority = std::max(GREATEST_PRIORITY, std::min(LEAST_PRIORITY, priority));  // clamped, as documented
    *out = call.state.streams.add(new_stream(call.state, *call.context, flags, priority, true));
    return CUDA_SUCCESS;
}
CUDA_API cuStreamCreate(CUstream* out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

// Returns at once; what has been submitted is still done.
CUDA_API cuStreamDestroy_v2(CUstream handle) {
    Call call;
    if (call.error) return call.error;
    const auto stream = call.state.streams.find(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) invalidate(*stream->capture, CUDA_SUCCESS);
    call.state.streams.remove(handle);
    return CUDA_SUCCESS;
}
CUDA_API cuStreamDestroy(CUstream handle) { return cuStreamDestroy_v2(handle); }

CUDA_API cuStreamSynchronize(CUstream handle) {
    Call call;
    if (call.error) return call.error;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (stream == call.context->legacy)
        if (const CUresult broken = end_captures_that_legacy_work_breaks(call.state, *call.context)) return broken;
    std::vector<Ticket> tickets{stream->queue->last(stream->queue)};
    if (stream == call.context->legacy)
        for (const auto& [queue, blocking] : call.context->queues)
            if (blocking) tickets.push_back(queue->last(queue));
    call.state.executor.wait(call.lock, tickets);
    return call.outcome();
}

CUDA_API cuStreamQuery(CUstream handle) {
    Call call;
    if (call.error) return call.error;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) return invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    bool done = stream->queue->last(stream->queue).done();
    if (stream == call.context->legacy)
        for (const auto& [queue, blocking] : call.context->queues)
            done = done && (!blocking || queue->last(queue).done());
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_API cuStreamGetFlags(CUstream handle, unsigned* flags) {
    Call call;
    if (call.error) return call.error;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

CUDA_API cuStreamGetPriority(CUstream handle, int* priority) {
    Call call;
    if (call.error) return call.error;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

CUDA_API cuStreamGetCtx(CUstream handle, CUcontext* out) {
    Call call;
    if (call.error) return call.error;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUcontext>(stream->context);
    return CUDA_SUCCESS;
}

CUDA_API cuStreamGetId(CUstream handle, unsigned long long* id) {
    Call call;
    if (call.error) return call.error;
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = stream->id;
    return CUDA_SUCCESS;
}
