// cuGetErrorName and cuGetErrorString. Invariant: every code that a function here answers has a text; PyCUDA does not
// look at the result code. Of an unknown one the pointer is null, as documented.
#include <unordered_map>

#include "cuda_api.h"

namespace {

struct Words {
    const char *name, *text;
};

const Words* find(CUresult code) {
    static const auto* words = new std::unordered_map<int, Words>{
#define ENTRY(name, number, text) {number, {#name, text}},
        CUDA_RESULTS(ENTRY)
#undef ENTRY
    };
    const auto found = words->find(code);
    return found == words->end() ? nullptr : &found->second;
}

}  // namespace

CUDA_API cuGetErrorString(CUresult code, const char** text) {
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    const Words* words = find(code);
    *text = words ? words->text : nullptr;
    return words ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API cuGetErrorName(CUresult code, const char** text) {
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    const Words* words = find(code);
    *text = words ? words->name : nullptr;
    return words ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
