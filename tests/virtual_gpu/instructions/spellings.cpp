// See spellings.h.
#include "spellings.h"

namespace vgpu {

namespace {

const std::vector<std::string> LOAD_ORDERS = {".volatile", ".weak", ".relaxed.cta", ".relaxed.gpu", ".relaxed.sys",
                                              ".acquire.cta", ".acquire.gpu", ".acquire.sys"};
const std::vector<std::string> STORE_ORDERS = {".volatile", ".weak", ".relaxed.cta", ".relaxed.gpu", ".relaxed.sys",
                                               ".release.cta", ".release.gpu", ".release.sys"};

std::vector<std::string> with_hints(const std::vector<std::string>& operators) {
    std::vector<std::string> made;
    for (const std::string& one : operators)
        for (const char* level1 : {"", ".L1::evict_first", ".L1::evict_last", ".L1::no_allocate"})
            for (const char* prefetch : {"", ".L2::64B", ".L2::128B", ".L2::256B"}) made.push_back(one + level1 + prefetch);
    return made;
}

}  // namespace

const Hints LOAD_CACHES = {LOAD_ORDERS, with_hints({"", ".ca", ".cg", ".cs", ".lu", ".cv"})};
const Hints NON_COHERENT = {{}, with_hints({".nc", ".ca.nc", ".cg.nc", ".cs.nc"})};
const Hints STORE_CACHES = {STORE_ORDERS, {"", ".wb", ".cg", ".cs", ".wt", ".L1::evict_first", ".L1::evict_last", ".L1::no_allocate"}};
const Hints PLAIN = {{".volatile", ".weak", ".relaxed.cta", ".acquire.cta", ".release.cta"}, {""}};

std::vector<std::string> spellings(const std::string& name, const std::string& space, const Hints& hints) {
    std::vector<std::string> made;
    for (const std::string& cache : hints.caches) made.push_back(name + space + cache);
    for (const std::string& order : hints.orders) made.push_back(name + order + space);
    return made;
}

}  // namespace vgpu
