// A decoded kernel: what the warp executor steps through. Made by decode.cpp, never changed afterwards.
//
// A register of a warp is 32 lanes side by side: 64 bytes (16-bit), 128 (32-bit and predicates, one int32 of 0 or -1 a
// lane) or 256 (64-bit). Immediates, addresses of variables and special registers are registers too, filled in before
// the first instruction: an instruction only ever sees byte offsets into the warp's register file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vgpu {

struct Warp;
struct Op;

constexpr int LANES = 32;
constexpr uint32_t ALL = 0xffffffffu;
constexpr int OPERANDS = 16;
constexpr uint8_t EVERYONE = 0xff;  // the members of a collective that has no membermask: all lanes of the warp

// `mask`: the lanes that execute. A full handler may write every lane's registers (the other lanes are gone); a masked
// one writes only those of warp.on. Memory is only ever touched for lanes of `mask`.
using Handler = void (*)(Warp& warp, const Op& op, uint32_t mask);

enum class Flow : uint8_t { next, collective, branch, indexed, call, leave, finish, barrier, yield };

struct Op {
    Handler full = nullptr, masked = nullptr;
    Flow flow = Flow::next;
    bool leader = false;             // first of a basic block: lanes that went apart may meet here
    uint8_t guard = 0;               // 0 none, 1 @p, 2 @!p
    bool wide[2] = {false, false};   // the first and second address register has 64 bits
    bool aligned = false;            // a barrier that all lanes of the warp must reach at the same instruction
    uint8_t members = EVERYONE;      // of a collective: which operand is the membermask
    bool strong = false;             // a load or store that is volatile
    bool negated = false;            // of a predicate operand: !p
    uint32_t guard_at = 0;
    uint32_t target = 0;             // branch, call
    uint32_t line = 0;               // of the PTX text
    uint32_t form = 0;               // index into Program::forms, for the instruction mix
    uint32_t at[OPERANDS] = {};      // offsets into the register file
    int64_t offset[2] = {0, 0};      // of the first and second address
    int64_t literal[2] = {0, 0};     // operands that must be numbers; what the form says
};

enum class Source : uint8_t { value, tid_x, tid_y, tid_z, ntid_x, ntid_y, ntid_z, ctaid_x, ctaid_y, ctaid_z,
                              nctaid_x, nctaid_y, nctaid_z, laneid, warpid, nwarpid, smid, nsmid, gridid, lanemask_eq,
                              lanemask_lt, lanemask_le, lanemask_gt, lanemask_ge, dynamic_smem_size, total_smem_size };

constexpr uint32_t UNPLACED = UINT32_MAX;

// A register that is filled in before the kernel starts. UNPLACED where no instruction came to use it.
struct Constant {
    uint32_t at;
    uint8_t bytes;   // 2, 4 or 8 a lane
    Source source;
    uint64_t value;  // Source::value; else added
};

struct Program {
    std::vector<Op> ops;
    std::vector<Constant> constants;
    std::vector<std::vector<uint32_t>> tables;  // targets of indexed branches
    std::vector<std::string> forms;
    uint32_t register_bytes = 0;
    uint32_t static_shared = 0, dynamic_shared_at = 0;
    uint32_t local_bytes = 0;
    uint32_t frame_bytes = 0;  // .param variables of calls, bytes of a thread
};

// Generic addresses of what is not global memory; .shared, .local and .param addresses are offsets into these.
constexpr uint64_t SHARED_WINDOW = 0x0100'0000'0000'0000, LOCAL_WINDOW = 0x0200'0000'0000'0000,
                   PARAMETER_WINDOW = 0x0300'0000'0000'0000, WINDOW_MASK = 0xff00'0000'0000'0000;

}  // namespace vgpu
