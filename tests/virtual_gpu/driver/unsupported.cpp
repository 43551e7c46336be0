// The answer of every driver function that is not implemented: CUDA_ERROR_NOT_SUPPORTED, and once its name on stderr.
//
// Callers: the stubs that build.py makes from symbols.txt, one for each name. They are weak: a definition in another
// file takes the place of its stub.
#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include "cuda_api.h"

extern "C" CUresult virtual_gpu_unsupported(const char* name) {
    static auto* mutex = new std::mutex;
    static auto* named = new std::set<std::string>;
    const std::lock_guard lock(*mutex);
    if (named->insert(name).second) fprintf(stderr, "virtual GPU: %s is not implemented\n", name);
    return CUDA_ERROR_NOT_SUPPORTED;
}
