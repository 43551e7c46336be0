// Instructions in which lanes of a warp look at each other: PTX ISA 8.5, sections 9.7.9.6, 9.7.13.6 to 9.7.13.10.
//
// They are called when all living lanes of the membermask have come (core/collective.cpp), with these lanes as mask.
#include <algorithm>
#include <cstring>

#include "lanes.h"

namespace vgpu {

namespace {

enum class Shuffle { up, down, butterfly, index };

template <Shuffle MODE, bool TELLS>
void shuffle(Warp& warp, const Op& op, uint32_t mask) {
    constexpr int A = TELLS ? 2 : 1;
    const uint32_t* a = lanes<uint32_t>(warp, op.at[A]);
    const uint32_t* b = lanes<uint32_t>(warp, op.at[A + 1]);
    const uint32_t* c = lanes<uint32_t>(warp, op.at[A + 2]);
    uint32_t values[LANES];
    int32_t inside[LANES];
    for (int l = 0; l < LANES; ++l) {
        const int by = static_cast<int>(b[l] & 31), clamp = static_cast<int>(c[l] & 31), segment = static_cast<int>(c[l] >> 8 & 31);
        const int last = (l & segment) | (clamp & ~segment), first = l & segment;
        int from = MODE == Shuffle::up ? l - by : MODE == Shuffle::down ? l + by : MODE == Shuffle::butterfly ? l ^ by : first | (by & ~segment);
        const bool ok = MODE == Shuffle::up ? from >= last : from <= last;
        if (!ok) from = l;
        values[l] = a[from];
        inside[l] = -static_cast<int32_t>(ok);
        if ((mask >> l & 1) && !(mask >> from & 1))
            throw Trap{ERROR_LAUNCH_FAILED, "shfl.sync: lane " + std::to_string(l) + " reads lane " + std::to_string(from) + ", which does not execute it"};
    }
    for (int l = 0; l < LANES; ++l) {
        if (!(mask >> l & 1)) continue;
        lanes<uint32_t>(warp, op.at[0])[l] = values[l];
        if (TELLS) lanes<int32_t>(warp, op.at[1])[l] = inside[l];
    }
}

enum class Ballot { all, any, uniform, lanes };

template <Ballot MODE>
void vote(Warp& warp, const Op& op, uint32_t mask) {
    const uint32_t held = (op.negated ? ~bits_of(lanes<int32_t>(warp, op.at[1])) : bits_of(lanes<int32_t>(warp, op.at[1]))) & mask;
    const uint32_t result = MODE == Ballot::lanes ? held
                          : -static_cast<uint32_t>(MODE == Ballot::all ? held == mask : MODE == Ballot::any ? held != 0 : held == 0 || held == mask);
    for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1) lanes<uint32_t>(warp, op.at[0])[l] = result;
}

void active_mask(Warp& warp, const Op& op, uint32_t mask) {
    for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1) lanes<uint32_t>(warp, op.at[0])[l] = mask;
}

template <class T>
void match_any(Warp& warp, const Op& op, uint32_t mask) {
    T a[LANES];
    std::memcpy(a, lanes<T>(warp, op.at[1]), sizeof a);
    for (int l = 0; l < LANES; ++l) {
        if (!(mask >> l & 1)) continue;
        uint32_t same = 0;
        for (int k = 0; k < LANES; ++k) same |= static_cast<uint32_t>((mask >> k & 1) && a[k] == a[l]) << k;
        lanes<uint32_t>(warp, op.at[0])[l] = same;
    }
}

template <class T>
void match_all(Warp& warp, const Op& op, uint32_t mask) {
    const T* a = lanes<T>(warp, op.at[2]);
    bool same = true;
    for (int l = 0; l < LANES; ++l) same = same && (!(mask >> l & 1) || a[l] == a[__builtin_ctz(mask)]);
    for (int l = 0; l < LANES; ++l) {
        if (!(mask >> l & 1)) continue;
        lanes<uint32_t>(warp, op.at[0])[l] = same ? mask : 0;
        lanes<int32_t>(warp, op.at[1])[l] = -static_cast<int32_t>(same);
    }
}

template <class T, class F>
void reduce(Warp& warp, const Op& op, uint32_t mask) {
    const T* a = lanes<T>(warp, op.at[1]);
    T result = a[__builtin_ctz(mask)];
    for (uint32_t rest = mask & (mask - 1); rest != 0; rest &= rest - 1) result = F{}(result, a[__builtin_ctz(rest)]);
    for (int l = 0; l < LANES; ++l)
        if (mask >> l & 1) lanes<T>(warp, op.at[0])[l] = result;
}

template <class T, class F>
void add_reduction(Forms& forms, const std::string& name, F) { forms.add_collective("redux.sync." + name, "Www", &reduce<T, F>, 2); }

template <Shuffle MODE>
void add_shuffle(Forms& forms, const std::string& mode) {
    forms.add_collective("shfl.sync." + mode + ".b32", "Wwwww", &shuffle<MODE, false>, 4);
    forms.add_collective("shfl.sync." + mode + ".b32", "W|Pwwww", &shuffle<MODE, true>, 5);
}

void nothing(Warp&, const Op&, uint32_t) {}  // bar.warp.sync: that the lanes meet is all

}  // namespace

void add_warp_wide(Forms& forms) {
    add_shuffle<Shuffle::up>(forms, "up");
    add_shuffle<Shuffle::down>(forms, "down");
    add_shuffle<Shuffle::butterfly>(forms, "bfly");
    add_shuffle<Shuffle::index>(forms, "idx");
    forms.add_collective("vote.sync.all.pred", "Pnw", &vote<Ballot::all>, 2);
    forms.add_collective("vote.sync.any.pred", "Pnw", &vote<Ballot::any>, 2);
    forms.add_collective("vote.sync.uni.pred", "Pnw", &vote<Ballot::uniform>, 2);
    forms.add_collective("vote.sync.ballot.b32", "Wnw", &vote<Ballot::lanes>, 2);
    forms.add("activemask.b32", "W", &active_mask);
    forms.add_collective("match.any.sync.b32", "Www", &match_any<uint32_t>, 2);
    forms.add_collective("match.any.sync.b64", "Wdw", &match_any<uint64_t>, 2);
    forms.add_collective("match.all.sync.b32", "W|Pww", &match_all<uint32_t>, 3);
    forms.add_collective("match.all.sync.b64", "W|Pdw", &match_all<uint64_t>, 3);
    forms.add_collective("bar.warp.sync", "w", &nothing, 0);
    add_reduction<uint32_t>(forms, "add.u32", [](uint32_t a, uint32_t b) { return a + b; });
    add_reduction<int32_t>(forms, "add.s32", [](int32_t a, int32_t b) { return a + b; });
    add_reduction<uint32_t>(forms, "min.u32", [](uint32_t a, uint32_t b) { return std::min(a, b); });
    add_reduction<int32_t>(forms, "min.s32", [](int32_t a, int32_t b) { return std::min(a, b); });
    add_reduction<uint32_t>(forms, "max.u32", [](uint32_t a, uint32_t b) { return std::max(a, b); });
    add_reduction<int32_t>(forms, "max.s32", [](int32_t a, int32_t b) { return std::max(a, b); });
    add_reduction<uint32_t>(forms, "and.b32", [](uint32_t a, uint32_t b) { return a & b; });
    add_reduction<uint32_t>(forms, "or.b32", [](uint32_t a, uint32_t b) { return a | b; });
    add_reduction<uint32_t>(forms, "xor.b32", [](uint32_t a, uint32_t b) { return a ^ b; });
}

}  // namespace vgpu
