// The one driver state, what every call checks, and sticky errors.
#include "state.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "capture.h"

namespace vgpu {

Driver& driver() {
    static Driver* state = new Driver;
    return *state;
}

ContextStack& context_stack() {
    // Trivially destructible: still there when other destructors of this thread call the driver.
    static thread_local ContextStack stack{};
    return stack;
}

// Of every code cuda.h says that the process must be ended, but of ASSERT, of which it says nothing: there, too, driver
// 580.159 gives no other context.
void Driver::fail(CUresult code, const std::string& text) {
    if (error) return;
    error = code;
    last_fault = text;
    statistics.fault(text);
    fprintf(stderr, "virtual GPU: error %d: %s\n", code, text.c_str());
    executor.notify();
}

void Driver::look_at_control() {
    if (!control.active()) return;
    control.poll();
    const std::string lost = control.lost();
    if (!lost.empty() && !error) {
        error = CUDA_ERROR_UNKNOWN;
        last_fault = "injected '" + lost + "'";
        statistics.fault(last_fault);
        fprintf(stderr, "virtual GPU: %s\n", last_fault.c_str());
        stop = true;
        executor.notify();
    }
    if (control.counters_wanted()) write_counters();
}

CUresult Driver::drain(std::unique_lock<std::mutex>& lock, Context& context) {
    std::vector<Ticket> all;
    for (const auto& [queue, blocking] : context.queues) all.push_back(queue->last(queue));
    executor.wait(lock, all);
    all.clear();
    std::erase_if(context.queues, [](const auto& entry) { return entry.first.use_count() == 1; });
    return error;
}

// Writes beside the file and renames, so that a reader never sees half of it.
void Driver::write_counters() {
    std::string path = configuration.counters_path;
    if (path.empty()) return;
    const size_t at = path.find("%p");
    if (at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
    const std::string part = path + ".part." + std::to_string(getpid());
    std::ofstream file(part);
    file << statistics.json() << "\n";
    file.close();
    if (!file || rename(part.c_str(), path.c_str()))
        fprintf(stderr, "virtual GPU: cannot write VIRTUAL_GPU_COUNTERS=%s\n", path.c_str());
}

Call::Call(Needs needs, bool even_if_failed) : state(driver()) {
    if (in_callback()) {
        error = CUDA_ERROR_NOT_PERMITTED;
        return;
    }
    // A child of fork shares no threads with the process that called cuInit, and the lock may be held by one of them.
    if (needs != Needs::nothing && state.process != getpid()) {
        error = CUDA_ERROR_NOT_INITIALIZED;
        return;
    }
    lock = std::unique_lock(state.mutex);
    state.look_at_control();
    if (needs != Needs::context) return;
    context = context_stack().top();
    if (!context) error = CUDA_ERROR_INVALID_CONTEXT;
    else if (context->destroyed) error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    else if (!even_if_failed) error = state.error;
}

CUresult Call::forbid_in_capture() { return end_captures_that_see_unsafe_calls(state); }

}  // namespace vgpu
