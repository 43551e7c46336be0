// Places for virtual registers: liveness by data flow over basic blocks, then linear scan. Caller: decode.cpp.
//
// Lanes that are apart execute different instructions, but a masked handler writes no other lane's registers: seen from
// one lane the kernel is sequential, and two registers may share a place exactly if they never live at once.
#include <algorithm>
#include <map>

#include "decode.h"
#include "limits.h"

namespace vgpu {

namespace {

using Bits = std::vector<uint64_t>;

struct BasicBlock {
    size_t first, last;           // instructions, both included
    std::vector<size_t> next;
    Bits in, out, used, defined;  // used before it is defined in the block
};

struct Range {
    int id;
    size_t first, last;
};

void set(Bits& bits, int at) { bits[static_cast<size_t>(at) >> 6] |= 1ull << (at & 63); }
bool has(const Bits& bits, int at) { return bits[static_cast<size_t>(at) >> 6] >> (at & 63) & 1; }

// Most registers live in few blocks: whole words of absent ones are passed over at once.
template <class Visit>
void each(const Bits& bits, Visit visit) {
    for (size_t w = 0; w < bits.size(); ++w)
        for (uint64_t rest = bits[w]; rest != 0; rest &= rest - 1) visit(static_cast<int>(w * 64) + __builtin_ctzll(rest));
}

std::vector<BasicBlock> blocks_of(const std::vector<Draft>& drafts, uint32_t first, size_t words,
                                  const std::vector<std::vector<uint32_t>>& tables) {
    std::vector<BasicBlock> blocks;
    std::map<size_t, size_t> at;
    for (size_t i = 0; i < drafts.size(); ++i) {
        if (i == 0 || drafts[i].op.leader) {
            at[i] = blocks.size();
            blocks.push_back({i, i, {}, Bits(words), Bits(words), Bits(words), Bits(words)});
        }
        blocks.back().last = i;
    }
    for (BasicBlock& block : blocks) {
        const Op& op = drafts[block.last].op;
        const bool ends = op.flow == Flow::branch || op.flow == Flow::finish || op.flow == Flow::leave || op.flow == Flow::indexed;
        if ((!ends || op.guard != 0) && block.last + 1 < drafts.size()) block.next.push_back(at.at(block.last + 1));
        if (op.flow == Flow::branch) block.next.push_back(at.at(op.target - first));
        if (op.flow == Flow::indexed)
            for (const uint32_t target : tables[op.target]) block.next.push_back(at.at(target - first));
        for (size_t i = block.first; i <= block.last; ++i) {
            const Draft& draft = drafts[i];
            const auto use = [&](int id) {
                if (id >= 0 && !has(block.defined, id)) set(block.used, id);
            };
            use(draft.guard);
            for (size_t k = 0; k < draft.registers.size(); ++k)
                // what a guarded instruction does not write keeps its value
                if (!draft.written[k] || draft.op.guard != 0) use(draft.registers[k]);
            for (size_t k = 0; k < draft.registers.size(); ++k)
                if (draft.written[k] && draft.op.guard == 0 && draft.registers[k] >= 0) set(block.defined, draft.registers[k]);
        }
    }
    return blocks;
}

void flow(std::vector<BasicBlock>& blocks, size_t words) {
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t b = blocks.size(); b-- > 0;) {
            BasicBlock& block = blocks[b];
            for (size_t w = 0; w < words; ++w) {
                uint64_t out = 0;
                for (const size_t next : block.next) out |= blocks[next].in[w];
                const uint64_t in = block.used[w] | (out & ~block.defined[w]);
                changed = changed || in != block.in[w] || out != block.out[w];
                block.in[w] = in;
                block.out[w] = out;
            }
        }
    }
}

}  // namespace

uint32_t allocate_registers(std::vector<Draft>& drafts, uint32_t first, const std::vector<VirtualRegister>& registers,
                            std::vector<Constant>& constants, const std::vector<std::vector<uint32_t>>& tables,
                            uint32_t from, uint32_t& pressure) {
    const size_t words = registers.size() / 64 + 1;
    const auto leaders = static_cast<size_t>(std::count_if(drafts.begin(), drafts.end(), [](const Draft& draft) { return draft.op.leader; }));
    if (words * (leaders + 1) * 4 * sizeof(uint64_t) > LIVENESS_BYTES)
        throw LoadError(ERROR_INVALID_PTX, "PTX line " + std::to_string(drafts.front().op.line) + ": " + std::to_string(registers.size()) +
                        " registers in a function of " + std::to_string(leaders) + " branches: too many for this machine");
    auto blocks = blocks_of(drafts, first, words, tables);
    flow(blocks, words);
    std::vector<Range> ranges(registers.size(), Range{-1, SIZE_MAX, 0});
    const auto touch = [&](int id, size_t at) {
        Range& range = ranges[static_cast<size_t>(id)];
        range.id = id;
        range.first = std::min(range.first, at);
        range.last = std::max(range.last, at);
    };
    for (const BasicBlock& block : blocks) {
        each(block.in, [&](int id) { touch(id, block.first); });
        each(block.out, [&](int id) { touch(id, block.last); });
        for (size_t i = block.first; i <= block.last; ++i) {
            if (drafts[i].guard >= 0) touch(drafts[i].guard, i);
            for (const int id : drafts[i].registers)
                if (id >= 0) touch(id, i);
        }
    }
    std::vector<uint32_t> place(registers.size(), 0);
    uint32_t top = from;
    std::vector<Range> waiting;
    for (const Range& range : ranges) {
        if (range.id < 0) continue;
        const VirtualRegister& reg = registers[static_cast<size_t>(range.id)];
        if (reg.constant < 0) {
            waiting.push_back(range);
            continue;
        }
        place[static_cast<size_t>(range.id)] = top;
        constants[static_cast<size_t>(reg.constant)].at = top;
        top += reg.bytes * LANES;
    }
    std::sort(waiting.begin(), waiting.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
    std::map<uint32_t, std::vector<uint32_t>> idle;  // places by bytes a lane
    std::vector<Range> alive;
    const auto weight = [&](const Range& range) {
        const VirtualRegister& reg = registers[static_cast<size_t>(range.id)];
        return reg.data ? (reg.bytes + 3) / 4 : 0;
    };
    uint32_t now = 0;
    pressure = 0;
    for (const Range& range : waiting) {
        std::erase_if(alive, [&](const Range& old) {
            if (old.last >= range.first) return false;
            idle[registers[static_cast<size_t>(old.id)].bytes].push_back(place[static_cast<size_t>(old.id)]);
            now -= weight(old);
            return true;
        });
        const uint32_t bytes = registers[static_cast<size_t>(range.id)].bytes;
        auto& places = idle[bytes];
        if (places.empty()) {
            places.push_back(top);
            top += bytes * LANES;
        }
        place[static_cast<size_t>(range.id)] = places.back();
        places.pop_back();
        alive.push_back(range);
        now += weight(range);
        pressure = std::max(pressure, now);
    }
    for (Draft& draft : drafts) {
        if (draft.guard >= 0) draft.op.guard_at = place[static_cast<size_t>(draft.guard)];
        for (size_t k = 0; k < draft.registers.size(); ++k)
            if (draft.registers[k] >= 0) draft.op.at[k] = place[static_cast<size_t>(draft.registers[k])];
    }
    return top;
}

}  // namespace vgpu
