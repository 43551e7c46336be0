// The spellings of loads and stores that differ in hints only: cache operators, eviction priorities, prefetch sizes, and
// the memory-order words, which this machine (one memory, no caches) obeys without doing anything.
#pragma once

#include <string>
#include <vector>

namespace vgpu {

struct Hints {
    std::vector<std::string> orders;  // between the instruction and its space: ".volatile", ".relaxed.gpu"
    std::vector<std::string> caches;  // behind the space
};

extern const Hints LOAD_CACHES, STORE_CACHES, NON_COHERENT, PLAIN;

// "ld" + order + ".global" + cache, each combination that PTX allows: an order excludes a cache operator.
std::vector<std::string> spellings(const std::string& name, const std::string& space, const Hints& hints);

}  // namespace vgpu
