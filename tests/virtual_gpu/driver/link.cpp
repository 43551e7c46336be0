// The linker of device code: not supported, but said so where callers look, in the error log.
//
// Invariant: cuLinkCreate never gives a linker, so that no other function of it can be reached.
#include "jit_log.h"
#include "state.h"

using namespace vgpu;

CUDA_API cuLinkCreate_v2(unsigned count, CUjit_option* options, void** values, void** linker) {
    Call call;
    if (call.error) return call.error;
    if (!linker || !known_options(count, options, values)) return CUDA_ERROR_INVALID_VALUE;
    *linker = nullptr;
    write_logs(count, options, values, "the virtual GPU does not link device code: load one PTX module", true);
    return CUDA_ERROR_NOT_SUPPORTED;
}
CUDA_API cuLinkCreate(unsigned count, CUjit_option* options, void** values, void** linker) {
    return cuLinkCreate_v2(count, options, values, linker);
}
