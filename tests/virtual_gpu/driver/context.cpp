// Contexts: creation, the stack of each thread, the primary context, limits.
//
// Invariant: destroying a context waits for its work, then frees all that belongs to it; its Context object stays,
// marked.
#include "context.h"

#include "capture.h"

using namespace vgpu;

namespace vgpu {

Context* new_context(Driver& state, unsigned flags, bool primary) {
    auto context = std::make_shared<Context>();
    context->id = state.next_id++;
    context->flags = flags;
    context->primary = primary;
    context->legacy = new_stream(state, *context, CU_STREAM_DEFAULT, 0, false);
    state.contexts.add(context);
    return context.get();
}

// Everything the context owns goes; what is still in a graph or a queue lives until that goes too.
void release_resources(Driver& state, Context& context) {
    end_captures_of(state, context);
    const auto owned = [&context](const auto& object) { return object.context == &context; };
    state.streams.remove_if(owned);
    state.events.remove_if(owned);
    std::erase_if(state.functions, [&](const auto& entry) { return entry.second->context == &context; });
    state.modules.remove_if(owned);
    remove_graphs_of(context);
    std::erase_if(state.blocks, [&](const auto& entry) {
        if (entry.second.context != &context) return false;
        if (entry.second.kind == Kind::registered) state.memory->unregister_host(entry.first);
        else state.memory->free(entry.first);
        return true;
    });
    context.per_thread.clear();
    context.queues.clear();
    context.legacy = new_stream(state, context, CU_STREAM_DEFAULT, 0, false);
}

CUresult destroy(Call& call, Context& context) {
    const CUresult error = call.state.drain(call.lock, context);
    release_resources(call.state, context);
    context.destroyed = true;
    ContextStack& stack = context_stack();
    if (stack.top() == &context) --stack.depth;
    return error;
}

CUresult push(Context* context) {
    ContextStack& stack = context_stack();
    if (stack.depth == ContextStack::DEPTH) return CUDA_ERROR_OUT_OF_MEMORY;
    stack.entries[stack.depth++] = context;
    return CUDA_SUCCESS;
}

}  // namespace vgpu

namespace {

CUresult create(CUcontext* out, unsigned flags, CUdevice device) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!out || flags & ~CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    if (device) return CUDA_ERROR_INVALID_DEVICE;
    if (call.state.error) return call.state.error;
    Context* context = new_context(call.state, flags, false);
    context->uses = 1;
    *out = reinterpret_cast<CUcontext>(context);
    return push(context);
}

}  // namespace

CUDA_API cuCtxCreate(CUcontext* context, unsigned flags, CUdevice device) { return create(context, flags, device); }
CUDA_API cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) { return create(context, flags, device); }
CUDA_API cuCtxCreate_v3(CUcontext* context, void*, int count, unsigned flags, CUdevice device) {
    return count ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(context, flags, device);
}
CUDA_API cuCtxCreate_v4(CUcontext* context, void* parameters, unsigned flags, CUdevice device) {
    return parameters ? CUDA_ERROR_NOT_SUPPORTED : create(context, flags, device);
}

CUDA_API cuCtxDestroy_v2(CUcontext handle) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    const auto context = call.state.contexts.find(handle);
    if (!context || context->destroyed || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    return destroy(call, *context);
}
CUDA_API cuCtxDestroy(CUcontext handle) { return cuCtxDestroy_v2(handle); }

CUDA_API cuCtxAttach(CUcontext* out, unsigned flags) {
    Call call(Needs::context, true);
    if (call.error) return call.error;
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    ++call.context->uses;
    *out = reinterpret_cast<CUcontext>(call.context);
    return CUDA_SUCCESS;
}

CUDA_API cuCtxDetach(CUcontext handle) {
    Call call(Needs::context, true);
    if (call.error) return call.error;
    if (reinterpret_cast<CUcontext>(call.context) != handle) return CUDA_ERROR_INVALID_CONTEXT;
    if (call.context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    return --call.context->uses ? CUDA_SUCCESS : destroy(call, *call.context);
}

CUDA_API cuCtxPushCurrent_v2(CUcontext handle) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    const auto context = call.state.contexts.find(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    return context->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : push(context.get());
}
CUDA_API cuCtxPushCurrent(CUcontext handle) { return cuCtxPushCurrent_v2(handle); }

CUDA_API cuCtxPopCurrent_v2(CUcontext* out) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    ContextStack& stack = context_stack();
    if (!stack.depth) return CUDA_ERROR_INVALID_CONTEXT;
    if (out) *out = reinterpret_cast<CUcontext>(stack.top());
    --stack.depth;
    return CUDA_SUCCESS;
}
CUDA_API cuCtxPopCurrent(CUcontext* out) { return cuCtxPopCurrent_v2(out); }

CUDA_API cuCtxSetCurrent(CUcontext handle) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    ContextStack& stack = context_stack();
    const auto context = call.state.contexts.find(handle);
    if (handle && !context) return CUDA_ERROR_INVALID_CONTEXT;
    if (context && context->destroyed) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (stack.depth) --stack.depth;
    return context ? push(context.get()) : CUDA_SUCCESS;
}

CUDA_API cuCtxGetCurrent(CUcontext* out) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = reinterpret_cast<CUcontext>(context_stack().top());
    return CUDA_SUCCESS;
}

CUDA_API cuCtxGetDevice(CUdevice* device) {
    Call call(Needs::context, true);
    if (call.error) return call.error;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = 0;
    return CUDA_SUCCESS;
}

CUDA_API cuCtxGetFlags(unsigned* flags) {
    Call call;
    if (call.error) return call.error;
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = call.context->flags;
    return CUDA_SUCCESS;
}

CUDA_API cuCtxGetId(CUcontext handle, unsigned long long* id) {
    Call call(handle ? Needs::initialised : Needs::context);
    if (call.error) return call.error;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    const auto named = handle ? call.state.contexts.find(handle) : nullptr;
    if (handle && !named) return CUDA_ERROR_INVALID_CONTEXT;
    *id = (named ? named.get() : call.context)->id;
    return CUDA_SUCCESS;
}

CUDA_API cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (handle && !call.state.contexts.find(handle)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;  // since 3.2, with every driver
    return CUDA_SUCCESS;
}

CUDA_API cuCtxSynchronize() {
    Call call;
    if (call.error) return call.error;
    if (const CUresult forbidden = call.forbid_in_capture()) return forbidden;
    return call.state.drain(call.lock, *call.context);
}

CUDA_API cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (device) return CUDA_ERROR_INVALID_DEVICE;
    if (call.state.error) return call.state.error;
    Context*& primary = call.state.primary;
    if (!primary) primary = new_context(call.state, 0, true);
    primary->destroyed = false;
    ++primary->uses;
    *out = reinterpret_cast<CUcontext>(primary);
    return CUDA_SUCCESS;
}

CUDA_API cuDevicePrimaryCtxReset_v2(CUdevice device) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (device) return CUDA_ERROR_INVALID_DEVICE;
    Context* primary = call.state.primary;
    if (!primary) return CUDA_SUCCESS;
    if (const CUresult error = call.state.drain(call.lock, *primary)) return error;
    release_resources(call.state, *primary);
    primary->destroyed = true;  // to whom it is current too, until it is retained again
    return CUDA_SUCCESS;
}
CUDA_API cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

CUDA_API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (device) return CUDA_ERROR_INVALID_DEVICE;
    Context* primary = call.state.primary;
    if (!primary || !primary->uses) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary->uses) return CUDA_SUCCESS;
    call.state.drain(call.lock, *primary);
    release_resources(call.state, *primary);
    primary->destroyed = true;
    return call.state.error;
}
CUDA_API cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

CUDA_API cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (device) return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    const Context* primary = call.state.primary;
    *flags = primary ? primary->flags : 0;
    *active = primary && !primary->destroyed;
    return CUDA_SUCCESS;
}

CUDA_API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (device) return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
    if (!call.state.primary) {
        call.state.primary = new_context(call.state, flags, true);
        call.state.primary->destroyed = true;
    }
    call.state.primary->flags = flags;
    return CUDA_SUCCESS;
}
CUDA_API cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}
