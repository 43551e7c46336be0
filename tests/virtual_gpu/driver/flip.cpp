// Finding and flipping a bit of a kernel's first output (flip.h).
#include "flip.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace vgpu {

// Addresses may stand anywhere in the parameters at a multiple of 8, within structures too.
Flip::Flip(Memory& memory, const Launch& launch, bool wanted) : kernel_(launch.kernel->name), wanted_(wanted) {
    if (!wanted) return;
    for (size_t at = 0; at + 8 <= launch.parameters.size(); at += 8) {
        uint64_t address;
        memcpy(&address, &launch.parameters[at], 8);
        const Allocation* found = memory.find(address);
        if (!found || !found->live || address >= found->end()) continue;
        const bool known =
            std::any_of(before_.begin(), before_.end(), [&](const Snapshot& s) { return s.begin == address; });
        const auto* begin = reinterpret_cast<const uint8_t*>(address);
        if (!known) before_.push_back({address, {begin, begin + (found->end() - address)}});
    }
}

void Flip::apply(unsigned bit) const {
    if (!wanted_) return;
    for (const Snapshot& snapshot : before_) {
        auto* now = reinterpret_cast<uint8_t*>(snapshot.begin);
        const auto change = std::mismatch(snapshot.bytes.begin(), snapshot.bytes.end(), now);
        if (change.first == snapshot.bytes.end()) continue;
        *change.second = static_cast<uint8_t>(*change.second ^ 1u << bit);
        return;
    }
    fprintf(stderr,
            "virtual GPU: bit_flip: kernel %s changed nothing that its parameters point to; no bit was flipped\n",
            kernel_.c_str());
}

}  // namespace vgpu
