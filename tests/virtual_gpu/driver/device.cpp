// cuInit, the driver's version, and the one device: an AGX Orin in its attributes, virtual in its name.
//
// Invariant: cuInit fails, with a message, if a VIRTUAL_GPU_ variable or a control line is not understood.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "state.h"

using namespace vgpu;

namespace {

constexpr char NAME[] = "Orin (virtual GPU)";
constexpr char PCI_BUS_ID[] = "0000:00:00.0";

// AGX Orin 64 GB as deviceQuery prints it, and the limits of compute capability 8.7 (CUDA C++ Programming Guide).
// Attributes that are not here are 0: what the device or this driver does not have (textures, cooperative launches,
// memory pools, clusters).
const auto& ATTRIBUTES = *new std::unordered_map<int, int>{
    {1, 1024},         // max threads per block
    {2, 1024},         // max block dim x
    {3, 1024},         // max block dim y
    {4, 64},           // max block dim z
    {5, 2147483647},   // max grid dim x
    {6, 65535},        // max grid dim y
    {7, 65535},        // max grid dim z
    {8, 49152},        // shared memory per block
    {9, 65536},        // constant memory
    {10, 32},          // warp size
    {11, 2147483647},  // max pitch
    {12, 65536},       // registers per block
    {13, 1300000},     // clock rate, kHz
    {14, 512},         // texture alignment
    {15, 1},           // copies overlap with kernels
    {16, 16},          // multiprocessors
    {18, 1},           // integrated
    {19, 1},           // maps host memory
    {30, 512},         // surface alignment
    {31, 1},           // concurrent kernels
    {36, 1300000},     // memory clock rate, kHz
    {37, 256},         // memory bus width, bits
    {38, 4194304},     // L2 cache
    {39, 1536},        // threads per multiprocessor
    {40, 2},           // asynchronous engines
    {41, 1},           // unified addressing
    {51, 32},          // texture pitch alignment
    {75, 8},           // compute capability major
    {76, 7},           // compute capability minor
    {78, 1},           // stream priorities
    {79, 1},           // global memory cached in L1
    {80, 1},           // local memory cached in L1
    {81, 167936},      // shared memory per multiprocessor
    {82, 65536},       // registers per multiprocessor
    {83, 1},           // managed memory
    {87, 32},          // single to double precision rate
    {90, 1},           // compute preemption
    {97, 166912},      // shared memory per block, opt-in
    {99, 1},           // host registration
    {106, 16},         // blocks per multiprocessor
    {111, 1024},       // shared memory reserved per block
};
constexpr int ATTRIBUTE_COUNT = 148;  // one more than the last of cuda.h 13.0; larger numbers are refused

void write_counters_at_exit() {
    if (driver().process == getpid()) driver().write_counters();
}

CUresult check_device(CUdevice device) { return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }

CUresult initialise(Driver& state) {
    if (state.process == getpid()) return CUDA_SUCCESS;
    if (state.process) return CUDA_ERROR_NOT_INITIALIZED;  // a child of fork
    try {
        state.configuration = read_environment();
        state.control.open(state.configuration.control_path);
    } catch (const std::invalid_argument& error) {
        fprintf(stderr, "virtual GPU: %s\n", error.what());
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!state.control.lost().empty()) {
        fprintf(stderr, "virtual GPU: no device: '%s'\n", state.control.lost().c_str());
        return CUDA_ERROR_NO_DEVICE;
    }
    try {
        state.memory = std::make_unique<Memory>(state.configuration.memory_bytes);
    } catch (const std::exception& error) {
        fprintf(stderr, "%s; is the address space limited (ulimit -v)?\n", error.what());
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    state.process = getpid();
    if (state.control.active()) state.executor.when_idle = [&state] { state.look_at_control(); };
    atexit(write_counters_at_exit);
    return CUDA_SUCCESS;
}

}  // namespace

CUDA_API cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    Driver& state = driver();
    if (state.process && state.process != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    const std::lock_guard lock(state.mutex);
    return initialise(state);
}

CUDA_API cuDriverGetVersion(int* version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = driver().configuration.driver_version;
    return CUDA_SUCCESS;
}

CUDA_API cuDeviceGetCount(int* count) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = 1;
    return CUDA_SUCCESS;
}

CUDA_API cuDeviceGet(CUdevice* device, int ordinal) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (ordinal) return CUDA_ERROR_INVALID_DEVICE;
    *device = 0;
    return CUDA_SUCCESS;
}

CUDA_API cuDeviceGetName(char* name, int length, CUdevice device) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!name || length < 1) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, length, "%s", NAME);
    return check_device(device);
}

CUDA_API cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, "VIRTUAL-GPU-ORIN", sizeof uuid->bytes);
    return check_device(device);
}
CUDA_API cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUDA_API cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = call.state.memory->capacity();
    return check_device(device);
}

CUDA_API cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    *major = ATTRIBUTES.at(75);
    *minor = ATTRIBUTES.at(76);
    return check_device(device);
}

CUDA_API cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!value || attribute < 1 || attribute >= ATTRIBUTE_COUNT) return CUDA_ERROR_INVALID_VALUE;
    const auto found = ATTRIBUTES.find(attribute);
    *value = found == ATTRIBUTES.end() ? 0 : found->second;
    return check_device(device);
}

CUDA_API cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!text || length < static_cast<int>(sizeof PCI_BUS_ID)) return CUDA_ERROR_INVALID_VALUE;
    snprintf(text, length, "%s", PCI_BUS_ID);
    return check_device(device);
}

CUDA_API cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!device || !text) return CUDA_ERROR_INVALID_VALUE;
    *device = 0;
    return strcmp(text, PCI_BUS_ID) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUDA_API cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    Call call(Needs::initialised);
    if (call.error) return call.error;
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    *can = 0;  // a device is no peer of itself
    return check_device(device | peer);
}

CUDA_API cuProfilerStart() { return Call().error; }
CUDA_API cuProfilerStop() { return Call().error; }
