// Reading and filling log options (jit_log.h).
#include "jit_log.h"

#include <algorithm>
#include <cstring>

namespace vgpu {

bool known_options(unsigned count, const CUjit_option* options, void** values) {
    if (count && (!options || !values)) return false;
    return std::all_of(options, options + count, [](int option) { return option >= 0 && option < CU_JIT_NUM_OPTIONS; });
}

void write_logs(unsigned count, const CUjit_option* options, void** values, const std::string& log, bool failed) {
    for (const bool error_log : {false, true}) {
        const CUjit_option buffer_key = error_log ? CU_JIT_ERROR_LOG_BUFFER : CU_JIT_INFO_LOG_BUFFER;
        const CUjit_option size_key =
            error_log ? CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES : CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES;
        char* buffer = nullptr;
        void** size = nullptr;
        for (unsigned i = 0; i < count; ++i) {
            if (options[i] == buffer_key) buffer = static_cast<char*>(values[i]);
            if (options[i] == size_key) size = &values[i];
        }
        if (!size) continue;
        const size_t room = static_cast<unsigned>(reinterpret_cast<uintptr_t>(*size));
        size_t used = 0;
        if (buffer && room) {
            if (error_log == failed) used = std::min(log.size(), room - 1);
            memcpy(buffer, log.data(), used);
            buffer[used] = 0;
        }
        *size = reinterpret_cast<void*>(used);
    }
}

}  // namespace vgpu
