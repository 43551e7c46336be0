// The injected silent fault: one bit of what a kernel has written is wrong.
//
// Caller: launch.cpp. The kernel's first output is found by what changes: the allocations that its parameters point
// into are compared, in the order of the parameters, with what they were before. Costs a copy of them, for that launch
// only.
#pragma once

#include "../core/machine.h"

namespace vgpu {

class Flip {
public:
    Flip(Memory& memory, const Launch& launch, bool wanted);
    // Flips `bit` of the first byte that has changed; says so on stderr if none has.
    void apply(unsigned bit) const;

private:
    struct Snapshot {
        uint64_t begin;
        std::vector<uint8_t> bytes;
    };
    std::string kernel_;
    bool wanted_;
    std::vector<Snapshot> before_;
};

}  // namespace vgpu
