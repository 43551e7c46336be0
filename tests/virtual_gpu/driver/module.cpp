// Modules: loading PTX text, logs, functions and variables by name.
//
// Invariant: what is not PTX text, or holds an instruction that the machine does not know, is refused with a log that
// says why; nothing is accepted in part. Codes, and where a log names its line, are as measured on driver 580.159.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "function.h"
#include "jit_log.h"

using namespace vgpu;

namespace {

constexpr char NOT_AN_IMAGE[] = "error   : Binary format for key='0', ident='' is not recognized";
constexpr char ABORTED[] = "\nptxas fatal   : Ptx assembly aborted due to errors";

uint16_t half_at(const uint8_t* image, int offset) {
    return static_cast<uint16_t>(image[offset] | image[offset + 1] << 8);
}

// Reads no further than the NUL that an image of text ends with.
bool begins_with(const uint8_t* image, const char* magic) {
    return !strncmp(reinterpret_cast<const char*>(image), magic, strlen(magic));
}

// An ELF file of 64 bits for NVIDIA's machine.
bool is_cubin(const uint8_t* image) {
    constexpr uint16_t EM_CUDA = 190;
    return begins_with(image, "\x7f\x45\x4c\x46\x02") && half_at(image, 18) == EM_CUDA;
}

// The container itself, or the structure that nvcc puts around it: a magic number, then a version of 1
// (fatbinary_section.h of CUDA).
bool is_fat_binary(const uint8_t* image) {
    return (begins_with(image, "\x50\xed\x55\xba") || begins_with(image, "\xb1\x43\x62\x46")) && half_at(image, 4) == 1;
}

CUresult refuse(std::string& log, CUresult code, const std::string& text) {
    log = text;
    return code;
}

// The number after `.version`, as 85 for 8.5, and its line; 0 if there is none.
int version_of(const std::string& ptx, long& line_number) {
    size_t at = 0;
    while ((at = ptx.find(".version", at)) != std::string::npos) {
        const size_t line = ptx.rfind('\n', at) + 1;  // npos + 1 is 0
        if (ptx.find("//", line) >= at) break;
        at += 8;
    }
    int major = 0, minor = 0;
    if (at == std::string::npos || sscanf(ptx.c_str() + at, ".version %d.%d", &major, &minor) != 2) return 0;
    line_number = 1 + std::count(ptx.begin(), ptx.begin() + static_cast<long>(at), '\n');
    return major * 10 + minor;
}

std::string said_by_ptxas(long line, const char* grade, const std::string& what) {
    return "ptxas application ptx input, line " + std::to_string(line) + "; " + grade + "   : " + what + ABORTED;
}

// What the machine says of a module, "PTX line 7: ...", as the driver's compiler says it.
std::string as_ptxas(const std::string& text) {
    long line = 0;
    int end = 0;
    return sscanf(text.c_str(), "PTX line %ld: %n", &line, &end) == 1 && end
               ? said_by_ptxas(line, "error", text.substr(static_cast<size_t>(end)))
               : text;
}

std::string number_of(int version) { return std::to_string(version / 10) + "." + std::to_string(version % 10); }

// `log` is left empty, or says why.
CUresult load(Call& call, CUmodule* out, const void* image, std::string& log) {
    if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult forbidden = call.forbid_in_capture()) return forbidden;
    const auto* bytes = static_cast<const uint8_t*>(image);
    if (is_cubin(bytes) || is_fat_binary(bytes))
        return refuse(log, CUDA_ERROR_NO_BINARY_FOR_GPU,
                      std::string("the virtual GPU runs PTX text only; this is a ") +
                          (is_cubin(bytes) ? "cubin" : "fat binary") + ": load the PTX that NVRTC made");
    for (const uint8_t* at = bytes; *at; ++at)
        if (*at < 0x20 && !isspace(*at)) return refuse(log, CUDA_ERROR_INVALID_IMAGE, NOT_AN_IMAGE);
    const std::string ptx = static_cast<const char*>(image);  // an image has no length: PTX ends with a NUL
    long line = 0;
    const int version = version_of(ptx, line), newest = newest_ptx(call.state.configuration.driver_version);
    if (!version) return refuse(log, CUDA_ERROR_INVALID_IMAGE, NOT_AN_IMAGE);
    if (version > newest)
        return refuse(log, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                      said_by_ptxas(line, "fatal",
                                    "Unsupported .version " + number_of(version) + "; current version is '" +
                                        number_of(newest) + "'"));
    try {
        auto loaded = std::make_shared<LoadedModule>();
        loaded->context = call.context;
        loaded->module = std::make_unique<Module>(ptx, *call.state.memory);
        *out = call.state.modules.add(std::move(loaded));
        return CUDA_SUCCESS;
    } catch (const LoadError& error) {
        return refuse(log, static_cast<CUresult>(error.code), error.what());
    } catch (const std::bad_alloc&) {
        return refuse(log, CUDA_ERROR_OUT_OF_MEMORY, "no memory of the host is left to load the module");
    }
}

CUresult load_and_report(Call& call, CUmodule* out, const void* image, std::string& log) {
    const CUresult error = load(call, out, image, log);
    if (!log.empty()) {
        call.state.last_fault = log;
        fprintf(stderr, "virtual GPU: module refused: %s\n", log.c_str());
        log = as_ptxas(log);
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
    if (!variable) return loaded->module->kernel(name) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
    if (address) *address = variable->address;
    if (bytes) *bytes = variable->bytes;
    return CUDA_SUCCESS;
}
