// Modules: loading PTX text, logs, functions and variables by name.
//
// Invariant: what is not PTX text, or holds an instruction that the machine does not know, is refused with a log that
// says why; nothing is accepted in part.
#include <cctype>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "function.h"
#include "jit_log.h"

using namespace vgpu;

namespace {

// Binary images begin with these: a cubin is an ELF file, a fat binary has a magic number (fatbinary_section.h of
// CUDA).
bool is_cubin(const uint8_t* image) {
    return memcmp(image,
                  "\x7f"
                  "ELF",
                  4) == 0;
}
bool is_fat_binary(const uint8_t* image) {
    return memcmp(image, "\x50\xed\x55\xba", 4) == 0 || memcmp(image, "\xb1\x43\x62\x46", 4) == 0;
}

CUresult refuse(std::string& log, CUresult code, const std::string& text) {
    log = text;
    return code;
}

// The number after `.version`, as 85 for 8.5; 0 if there is none.
int version_of(const std::string& ptx) {
    size_t at = 0;
    while ((at = ptx.find(".version", at)) != std::string::npos) {
        const size_t line = ptx.rfind('\n', at) + 1;  // npos + 1 is 0
        if (ptx.find("//", line) >= at) break;
        at += 8;
    }
    int major = 0, minor = 0;
    if (at == std::string::npos || sscanf(ptx.c_str() + at, ".version %d.%d", &major, &minor) != 2) return 0;
    return major * 10 + minor;
}

CUresult load(Call& call, CUmodule* out, const void* image, std::string& log) {
    if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult forbidden = call.forbid_in_capture()) return forbidden;
    const auto* bytes = static_cast<const uint8_t*>(image);
    if (is_cubin(bytes) || is_fat_binary(bytes))
        return refuse(log, CUDA_ERROR_NO_BINARY_FOR_GPU,
                      std::string("the virtual GPU runs PTX text only; this is a ") +
                          (is_cubin(bytes) ? "cubin" : "fat binary") + ": load the PTX that NVRTC made");
    for (const uint8_t* at = bytes; *at; ++at)
        if (*at < 0x20 && !isspace(*at))
            return refuse(log, CUDA_ERROR_INVALID_IMAGE, "the image is neither PTX text, a cubin nor a fat binary");
    const std::string ptx = static_cast<const char*>(image);  // an image has no length: PTX ends with a NUL
    const int version = version_of(ptx), newest = newest_ptx(call.state.configuration.driver_version);
    if (!version) return refuse(log, CUDA_ERROR_INVALID_PTX, "no .version directive: this is not PTX");
    if (version > newest)
        return refuse(log, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                      "PTX " + std::to_string(version / 10) + "." + std::to_string(version % 10) +
                          " is newer than this driver takes (" + std::to_string(newest / 10) + "." +
                          std::to_string(newest % 10) + " with " +
                          std::to_string(call.state.configuration.driver_version) +
                          "); compile with the NVRTC of the driver's CUDA");
    try {
        auto loaded = std::make_shared<LoadedModule>();
        loaded->context = call.context;
        loaded->module = std::make_unique<Module>(ptx, *call.state.memory);
        *out = call.state.modules.add(std::move(loaded));
        return CUDA_SUCCESS;
    } catch (const LoadError& error) {
        return refuse(log, static_cast<CUresult>(error.code), error.what());
    }
}

CUresult load_and_report(Call& call, CUmodule* out, const void* image, std::string& log) {
    const CUresult error = load(call, out, image, log);
    if (!log.empty()) {
        call.state.last_fault = log;
        fprintf(stderr, "virtual GPU: module refused: %s\n", log.c_str());
    }
    return error;
}

}  // namespace

CUDA_API cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned count, CUjit_option* options, void** values) {
    Call call;
    if (call.error) return call.error;
    if (!known_options(count, options, values)) return CUDA_ERROR_INVALID_VALUE;
    std::string log;
    const CUresult error = load_and_report(call, out, image, log);
    write_logs(count, options, values, log, error != CUDA_SUCCESS);
    return error;
}

CUDA_API cuModuleLoadData(CUmodule* out, const void* image) {
    return cuModuleLoadDataEx(out, image, 0, nullptr, nullptr);
}
CUDA_API cuModuleLoadFatBinary(CUmodule* out, const void* image) {
    return cuModuleLoadDataEx(out, image, 0, nullptr, nullptr);
}

CUDA_API cuModuleLoad(CUmodule* out, const char* path) {
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    std::ifstream file(path, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    std::ostringstream text;
    text << file.rdbuf();
    return cuModuleLoadData(out, (text.str() + std::string(4, '\0')).c_str());
}

CUDA_API cuModuleUnload(CUmodule handle) {
    Call call;
    if (call.error) return call.error;
    const auto loaded = call.state.modules.find(handle);
    if (!loaded) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult forbidden = call.forbid_in_capture()) return forbidden;
    if (const CUresult error = call.state.drain(call.lock, *call.context)) return error;
    std::erase_if(call.state.functions, [&](const auto& entry) { return entry.second == loaded; });
    call.state.modules.remove(handle);
    return CUDA_SUCCESS;
}

CUDA_API cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
    Call call;
    if (call.error) return call.error;
    if (!out || !name) return CUDA_ERROR_INVALID_VALUE;
    const auto loaded = call.state.modules.find(handle);
    if (!loaded) return CUDA_ERROR_INVALID_HANDLE;
    const Kernel* kernel = loaded->module->kernel(name);
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    auto& function = loaded->functions[name];
    if (!function) {
        function = std::make_unique<Function>();
        function->module = loaded.get();
        function->kernel = kernel;
        function->dynamic_shared_limit = std::max(0, SHARED_DEFAULT - static_cast<int>(kernel->static_shared));
    }
    *out = reinterpret_cast<CUfunction>(function.get());
    call.state.functions[*out] = loaded;
    return CUDA_SUCCESS;
}

CUDA_API cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule handle, const char* name) {
    Call call;
    if (call.error) return call.error;
    if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    const auto loaded = call.state.modules.find(handle);
    if (!loaded) return CUDA_ERROR_INVALID_HANDLE;
    const Variable* variable = loaded->module->variable(name);
    if (!variable) return CUDA_ERROR_NOT_FOUND;
    if (address) *address = variable->address;
    if (bytes) *bytes = variable->bytes;
    return CUDA_SUCCESS;
}
