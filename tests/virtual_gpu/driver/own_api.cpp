// What the virtual GPU exports beyond CUDA, for tests: last fault, counters, settings. Names begin with virtual_gpu_.
//
// Callers: tests/virtual_gpu/ through ctypes. Invariant: texts stay valid until the same thread asks again.
#include <cstdio>

#include "../core/forms.h"
#include "state.h"

using namespace vgpu;

#define OWN_API extern "C" __attribute__((visibility("default")))

namespace {

const char* keep(std::string text) {
    static thread_local auto* kept = new std::string;
    *kept = std::move(text);
    return kept->c_str();
}

}  // namespace

// The text of the last fault or refused module: kernel, PTX line, block, warp, lane, address. Empty if there was none.
OWN_API const char* virtual_gpu_last_fault() {
    const std::lock_guard lock(driver().mutex);
    return keep(driver().last_fault);
}

// The counters so far, one JSON object. Work that is still queued is not in it.
OWN_API const char* virtual_gpu_counters() { return keep(driver().statistics.json()); }

// Every form of instruction that the machine runs: a line each of its name, its operands (core/forms.h) and 1 if a module
// that this process loaded used it.
OWN_API const char* virtual_gpu_forms() { return keep(Forms::all().list()); }

OWN_API void virtual_gpu_reset_counters() { driver().statistics.reset(); }

// Writes the file of VIRTUAL_GPU_COUNTERS now.
OWN_API void virtual_gpu_write_counters() {
    const std::lock_guard lock(driver().mutex);
    driver().write_counters();
}

// Sets a VIRTUAL_GPU_ variable for the launches to come; what is fixed at cuInit (memory, control, driver version) is
// refused. 0, or 1 with a message on stderr.
OWN_API int virtual_gpu_configure(const char* name, const char* value) {
    Driver& state = driver();
    const std::lock_guard lock(state.mutex);
    if (!state.process) {
        fprintf(stderr, "virtual GPU: %s: before cuInit, set the environment variable\n", name);
        return 1;
    }
    Configuration changed = state.configuration;
    try {
        set_variable(changed, name, value);
    } catch (const std::invalid_argument& error) {
        fprintf(stderr, "virtual GPU: %s\n", error.what());
        return 1;
    }
    if (changed.memory_bytes != state.configuration.memory_bytes ||
        changed.control_path != state.configuration.control_path ||
        changed.driver_version != state.configuration.driver_version) {
        fprintf(stderr, "virtual GPU: %s can only be set in the environment, before cuInit\n", name);
        return 1;
    }
    state.configuration = changed;
    return 0;
}
