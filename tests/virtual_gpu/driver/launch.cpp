// Kernel launches: what the real driver refuses, the parameters, running, and injected faults.
//
// Invariant: a refused launch changes nothing and is not sticky; a fault while running is. All parameter bytes are
// copied when the call is made.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "flip.h"
#include "function.h"

using namespace vgpu;

namespace vgpu {
namespace {

Result run_kernel(const Launch& launch, const Options& options, const Running& running) {
    Driver& state = driver();
    const Injection& injection = running.injection;
    const bool meant = !running.in_graph || running.node == injection.node;
    const std::string& name = launch.kernel->name;
    if (meant && injection.fault) return {injection.fault, "injected '" + injection.text + "' at kernel " + name};
    Flip flip(*state.memory, launch, meant && injection.flip);
    Counters counters;
    const int64_t begin_ns = now_ns();
    const Outcome outcome = run(launch, *state.memory, options, counters, &state.stop);
    state.statistics.kernel_run(name, running.in_graph, counters);
    if (outcome.code) return {static_cast<CUresult>(outcome.code), outcome.text};
    flip.apply(injection.bit);
    if (injection.factor > 1) {
        const double rest_ns = static_cast<double>(now_ns() - begin_ns) * (injection.factor - 1);
        std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<int64_t>(rest_ns)));
    }
    return {};
}

// The parameter bytes from one pointer for each parameter.
std::vector<uint8_t> gather(const Kernel& kernel, void** pointers) {
    std::vector<uint8_t> bytes(kernel.parameter_bytes);
    for (size_t i = 0; i < kernel.parameters.size(); ++i)
        memcpy(&bytes[kernel.parameters[i].offset], pointers[i], kernel.parameters[i].bytes);
    return bytes;
}

// The parameter bytes from the `extra` list, a buffer and its size.
CUresult unpack(const Kernel& kernel, void** extra, std::vector<uint8_t>& bytes) {
    const uint8_t* buffer = nullptr;
    size_t size = 0;
    for (void** key = extra; *key != CU_LAUNCH_PARAM_END; key += 2) {
        if (*key == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const uint8_t*>(key[1]);
        else if (*key == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<const size_t*>(key[1]);
        else return CUDA_ERROR_INVALID_VALUE;
    }
    // A structure of the caller may end with padding up to its alignment, which is 16 bytes at most.
    const size_t padded = (size_t{kernel.parameter_bytes} + 15) / 16 * 16;
    if (size < kernel.parameter_bytes || size > padded || (size && !buffer)) {
        fprintf(stderr, "virtual GPU: kernel %s takes %u bytes of parameters, the launch passes %zu\n",
                kernel.name.c_str(), kernel.parameter_bytes, size);
        return CUDA_ERROR_INVALID_VALUE;
    }
    bytes.assign(buffer, buffer + kernel.parameter_bytes);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult check_shape(const Function& function, const Shape& shape) {
    const Kernel& kernel = *function.kernel;
    for (int i = 0; i < 3; ++i)
        if (!shape.grid[i] || !shape.block[i]) return CUDA_ERROR_INVALID_VALUE;
    if (shape.grid[0] > 2147483647u || shape.grid[1] > 65535 || shape.grid[2] > 65535) return CUDA_ERROR_INVALID_VALUE;
    if (shape.block[0] > 1024 || shape.block[1] > 1024 || shape.block[2] > 64) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t threads = uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
    if (threads > THREADS_OF_BLOCK || threads > kernel.max_threads) return CUDA_ERROR_INVALID_VALUE;
    if (kernel.required[0] != 0 && shape.block != kernel.required) {  // PTX ISA 8.5, section 11.4.3: an error of the launch
        fprintf(stderr, "virtual GPU: kernel %s has .reqntid %u, %u, %u, the launch has blocks of %u, %u, %u\n", kernel.name.c_str(),
                kernel.required[0], kernel.required[1], kernel.required[2], shape.block[0], shape.block[1], shape.block[2]);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (shape.shared > static_cast<uint32_t>(function.dynamic_shared_limit)) return CUDA_ERROR_INVALID_VALUE;
    if (kernel.static_shared + shape.shared > static_cast<uint32_t>(SHARED_OPT_IN)) return CUDA_ERROR_INVALID_VALUE;
    if (static_cast<int>(threads + 31) / 32 * registers_of_warp(kernel) > REGISTERS)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    return CUDA_SUCCESS;
}

CUresult launch(Call& call, const FunctionHold& hold, const Shape& shape, std::vector<uint8_t> parameters,
                CUstream handle) {
    const auto stream = find_stream(call, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->context != hold.module->context) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult error = check_shape(*hold.function, shape)) return error;
    Launch what;
    what.kernel = hold.function->kernel;
    what.grid = shape.grid;
    what.block = shape.block;
    what.dynamic_shared = shape.shared;
    what.parameters = std::move(parameters);
    Operation operation;
    operation.type = CU_GRAPH_NODE_TYPE_KERNEL;
    operation.run = [what = std::move(what), module = hold.module](const Running& running) {
        Options options;
        {
            const std::lock_guard lock(driver().mutex);
            options = driver().configuration.options;
        }
        return run_kernel(what, options, running);
    };
    return enqueue(call, stream, std::move(operation), true);
}

}  // namespace vgpu

CUDA_API cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** pointers,
                        void** extra) {
    Call call;
    if (call.error) return call.error;
    const FunctionHold hold = find_function(call.state, handle);
    if (!hold.function) return CUDA_ERROR_INVALID_HANDLE;
    if (pointers && extra) return CUDA_ERROR_INVALID_VALUE;
    const Kernel& kernel = *hold.function->kernel;
    std::vector<uint8_t> parameters;
    if (extra) {
        if (const CUresult error = unpack(kernel, extra, parameters)) return error;
    } else if (pointers) {
        parameters = gather(kernel, pointers);
    } else if (kernel.parameter_bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Shape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
    return launch(call, hold, shape, std::move(parameters), stream);
}
