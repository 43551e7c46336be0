// Branches, barriers, fences, and what a driver provides to kernels: PTX ISA 8.5, sections 9.7.12 and 9.7.13.
#include <cstdio>
#include <cstring>

#include "../core/block.h"
#include "access.h"
#include "lanes.h"

namespace vgpu {

namespace {

void nothing(Warp&, const Op&, uint32_t) {}  // what the executor does by the op's flow

void meet(Warp& warp, const Op& op, uint32_t mask, int barrier, int threads) {
    const int l = __builtin_ctz(mask);
    warp.barrier = lanes<uint32_t>(warp, op.at[barrier])[l];
    warp.barrier_threads = threads < 0 ? 0 : lanes<uint32_t>(warp, op.at[threads])[l];
    if (warp.barrier > 15) throw Trap{ERROR_LAUNCH_FAILED, "barrier " + std::to_string(warp.barrier) + ": a block has 16"};
    if (warp.barrier_threads % LANES != 0)
        throw Trap{ERROR_LAUNCH_FAILED, "a barrier of " + std::to_string(warp.barrier_threads) + " threads: it must be whole warps"};
}

void sync_all(Warp& warp, const Op& op, uint32_t mask) { meet(warp, op, mask, 0, -1); }
void sync_some(Warp& warp, const Op& op, uint32_t mask) { meet(warp, op, mask, 0, 1); }

template <Vote VOTE>
void sync_and_vote(Warp& warp, const Op& op, uint32_t mask) {
    meet(warp, op, mask, 1, -1);
    const uint32_t held = bits_of(lanes<int32_t>(warp, op.at[2]));
    warp.votes = op.negated ? ~held : held;
    warp.vote = VOTE;
    warp.reduction = &op;
}

void trap(Warp&, const Op&, uint32_t mask) {
    throw Trap{ERROR_LAUNCH_FAILED, "trap is executed (lane " + std::to_string(__builtin_ctz(mask)) + ")"};
}

void copy_argument(Warp& warp, const Op& op, uint32_t mask) {
    const uint32_t size = warp.block->grid.program.frame_bytes;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        uint8_t* frame = warp.parameters.data() + static_cast<size_t>(__builtin_ctz(rest)) * size;
        std::memcpy(frame + op.literal[1], frame + op.literal[0], op.at[0]);
    }
}

template <class T>
T argument(Warp& warp, const Op& op, int which, int lane) {
    T value;
    std::memcpy(&value, warp.parameters.data() + static_cast<size_t>(lane) * warp.block->grid.program.frame_bytes + op.at[which], sizeof value);
    return value;
}

std::string string_at(Warp& warp, uint64_t address, int lane) {
    std::string text;
    Hint hint;
    for (; text.size() < 4096; ++address) {
        const char c = static_cast<char>(*bytes_at<Space::generic>(warp, address, 1, lane, Use::read, hint));
        if (c == '\0') break;
        text += c;
    }
    return text;
}

template <class T>
std::string formatted(const std::string& how, T value) {
    const int size = std::snprintf(nullptr, 0, how.c_str(), value);
    std::string text(static_cast<size_t>(size > 0 ? size : 0) + 1, '\0');
    std::snprintf(text.data(), text.size(), how.c_str(), value);
    text.pop_back();
    return text;
}

// Kernel printf. The compiler stores integers of 32 bits in 4 bytes, all else in 8, each aligned. The result is the number
// of arguments that were printed.
void print(Warp& warp, const Op& op, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        const std::string format = string_at(warp, argument<uint64_t>(warp, op, 0, l), l);
        uint64_t next = argument<uint64_t>(warp, op, 1, l);
        Hint hint;
        const auto take = [&](unsigned bytes) {
            next = (next + bytes - 1) / bytes * bytes;
            uint64_t value = 0;
            std::memcpy(&value, bytes_at<Space::generic>(warp, next, bytes, l, Use::read, hint), bytes);
            next += bytes;
            return value;
        };
        std::string out;
        int printed = 0;
        for (size_t i = 0; i < format.size(); ++i) {
            if (format[i] != '%') {
                out += format[i];
                continue;
            }
            size_t end = i + 1;
            while (end < format.size() && std::strchr("-+ #0123456789.lh", format[end])) ++end;
            if (end >= format.size()) break;
            const std::string flags = format.substr(i, end - i);
            const char kind = format[end];
            const std::string how = flags + kind;
            i = end;
            if (kind == '%') {
                out += '%';
                continue;
            }
            if (std::strchr("fFeEgGaA", kind)) {
                double value;
                const uint64_t bits = take(8);
                std::memcpy(&value, &bits, 8);
                out += formatted(how, value);
            } else if (kind == 's') {
                out += formatted(how, string_at(warp, take(8), l).c_str());
            } else if (kind == 'p' || flags.find('l') != std::string::npos) {
                out += formatted(how, take(8));
            } else {
                out += formatted(how, static_cast<uint32_t>(take(4)));
            }
            ++printed;
        }
        std::fwrite(out.data(), 1, out.size(), stdout);
        std::fflush(stdout);
        std::memcpy(warp.parameters.data() + static_cast<size_t>(l) * warp.block->grid.program.frame_bytes + op.literal[0], &printed, sizeof printed);
    }
}

void assertion_failed(Warp& warp, const Op& op, uint32_t mask) {
    const int l = __builtin_ctz(mask);
    throw Trap{ERROR_ASSERT, string_at(warp, argument<uint64_t>(warp, op, 1, l), l) + ":" + std::to_string(argument<uint32_t>(warp, op, 2, l)) +
               ": assertion '" + string_at(warp, argument<uint64_t>(warp, op, 0, l), l) + "' failed (lane " + std::to_string(l) + ")"};
}

}  // namespace

void write_reduction(Warp& warp, uint32_t held, uint32_t alive) {
    const uint32_t result = warp.vote == Vote::count ? held
                          : -static_cast<uint32_t>(warp.vote == Vote::all ? held == alive : held != 0);
    for (int l = 0; l < LANES; ++l)
        if (warp.alive >> l & 1) lanes<uint32_t>(warp, warp.reduction->at[0])[l] = result;
}

void add_control(Forms& forms) {
    for (const char* name : {"bra", "bra.uni"}) forms.add(name, "", &nothing, Flow::branch);
    for (const char* name : {"brx.idx", "brx.idx.uni"}) forms.add(name, "w", &nothing, Flow::indexed);
    forms.add("call", "", &nothing, Flow::call);
    forms.add("ret", "", &nothing, Flow::leave);
    forms.add("exit", "", &nothing, Flow::finish);
    forms.add("(copy argument)", "", &copy_argument);
    forms.add("(vprintf)", "", &print);
    forms.add("(__assertfail)", "", &assertion_failed);
    for (const std::string name : {"bar.sync", "barrier.sync", "barrier.sync.aligned"}) {
        forms.add(name, "w", &sync_all, Flow::barrier);
        forms.add(name, "ww", &sync_some, Flow::barrier);
    }
    forms.add("bar.red.popc.u32", "Wwn", &sync_and_vote<Vote::count>, Flow::barrier);
    forms.add("bar.red.and.pred", "Pwn", &sync_and_vote<Vote::all>, Flow::barrier);
    forms.add("bar.red.or.pred", "Pwn", &sync_and_vote<Vote::any>, Flow::barrier);
    // one memory, in order: a fence has nothing to wait for
    for (const char* name : {"membar.cta", "membar.gl", "membar.sys"}) forms.add(name, "", &nothing);
    forms.add("nanosleep.u32", "w", &nothing, Flow::yield);
    forms.add("trap", "", &trap);
}

}  // namespace vgpu
