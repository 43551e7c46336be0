// See operands.h.
#include "operands.h"

#include <algorithm>
#include <cctype>

#include "scan.h"

namespace vgpu {

namespace {

const std::map<std::string, Source> SPECIAL = {
    {"%tid.x", Source::tid_x}, {"%tid.y", Source::tid_y}, {"%tid.z", Source::tid_z}, {"%ntid.x", Source::ntid_x},
    {"%ntid.y", Source::ntid_y}, {"%ntid.z", Source::ntid_z}, {"%ctaid.x", Source::ctaid_x}, {"%ctaid.y", Source::ctaid_y},
    {"%ctaid.z", Source::ctaid_z}, {"%nctaid.x", Source::nctaid_x}, {"%nctaid.y", Source::nctaid_y},
    {"%nctaid.z", Source::nctaid_z}, {"%laneid", Source::laneid}, {"%warpid", Source::warpid},
    {"%nwarpid", Source::nwarpid}, {"%smid", Source::smid}, {"%nsmid", Source::nsmid}, {"%gridid", Source::gridid},
    {"%lanemask_eq", Source::lanemask_eq}, {"%lanemask_lt", Source::lanemask_lt}, {"%lanemask_le", Source::lanemask_le},
    {"%lanemask_gt", Source::lanemask_gt}, {"%lanemask_ge", Source::lanemask_ge},
    {"%dynamic_smem_size", Source::dynamic_smem_size}, {"%total_smem_size", Source::total_smem_size}};

// Whether the `which`th address of an instruction may be that of a variable in `space`: the instruction says the state
// spaces of its addresses in their order, "cp.async.ca.shared.global"; without any it takes a generic address, which
// that of a constant or a parameter is not. As ptxas 12.6 refuses it.
bool takes(const std::string& instruction, int which, Place::Space space) {
    static const std::map<std::string, Place::Space> words = {{"shared", Place::shared}, {"shared::cta", Place::shared},
        {"global", Place::global}, {"local", Place::local}, {"param", Place::parameter}, {"const", Place::constant}};
    for (size_t at = 0, end; at < instruction.size(); at = end + 1) {
        end = std::min(instruction.find('.', at), instruction.size());
        const auto word = words.find(instruction.substr(at, end - at));
        if (word != words.end() && which-- == 0) return word->second == space;
    }
    return space != Place::constant && space != Place::parameter;
}

uint32_t bytes_of(char kind) { return kind == 'h' || kind == 'H' ? 2 : kind == 'd' || kind == 'D' ? 8 : 4; }

}  // namespace

std::vector<std::string> split_list(const std::string& text) {
    std::vector<std::string> found;
    std::string now;
    for (size_t i = 1; i + 1 < text.size(); ++i) {
        if (text[i] == ',') {
            found.push_back(now);
            now.clear();
        } else {
            now += text[i];
        }
    }
    if (!now.empty()) found.push_back(now);
    return found;
}

void Operands::declare(const std::string& name, uint32_t bytes, bool data) {
    names_[name] = {static_cast<int>(registers_.size()), !data};
    registers_.push_back({bytes, -1, data});
}

int Operands::predicate(const std::string& name) const {
    const auto found = names_.find(name);
    return found != names_.end() && found->second.predicate ? found->second.id : -1;
}

void Operands::rename(std::string& instruction, std::vector<std::string>& given) const {
    const auto frame = [&](const std::string& operand) {
        if (operand.size() < 3 || operand.front() != '[') return false;
        const auto found = places_.find(operand.substr(1, operand.find_first_of("+]") - 1));
        return found != places_.end() && found->second.space == Place::frame;
    };
    if (instruction.rfind("ld.param.", 0) == 0 && given.size() == 2 && frame(given[1])) instruction.replace(0, 8, "(load argument)");
    else if (instruction.rfind("st.param.", 0) == 0 && given.size() == 2 && frame(given[0])) instruction.replace(0, 8, "(store argument)");
    else if (given.size() == 2 && (given[1] == "%clock" || given[1] == "%clock64" || given[1] == "%globaltimer")) {
        instruction += " " + given[1];  // not a value that stands still
        given.pop_back();
    }
}

void Operands::use(Draft& draft, int id, bool written) {
    draft.registers.push_back(id);
    draft.written.push_back(written);
}

int Operands::constant(uint32_t bytes, Source source, uint64_t value) {
    if (source == Source::value && bytes < 8) value &= (1ull << bytes * 8) - 1;
    const auto [it, made] = known_.emplace(std::tuple{bytes, static_cast<int>(source), value}, static_cast<int>(registers_.size()));
    if (made) {
        registers_.push_back({bytes, static_cast<int>(constants_.size()), false});
        constants_.push_back({UNPLACED, static_cast<uint8_t>(bytes), source, value});
    }
    return it->second;
}

int Operands::value_of(const std::string& text, uint32_t bytes) {
    int64_t integer;
    uint64_t bits;
    int size;
    if (read_integer(text, integer)) return constant(bytes, Source::value, static_cast<uint64_t>(integer));
    if (read_real(text, bits, size)) {
        if (size == 8 && bytes == 4 && single_) bits = single_bits(bits), size = 4;
        return static_cast<uint32_t>(size) == bytes ? constant(bytes, Source::value, bits) : -1;
    }
    if (text == "WARP_SZ") return constant(bytes, Source::value, LANES);
    if (const auto special = SPECIAL.find(text); special != SPECIAL.end()) return constant(bytes, special->second, 0);
    const size_t plus = text.find('+');
    const auto named = places_.find(text.substr(0, plus));
    if (named == places_.end()) return -1;
    int64_t offset = 0;
    if (plus != std::string::npos && !read_integer(text.substr(plus + 1), offset)) return -1;
    const Place place = named->second;
    const uint64_t at = place.address + static_cast<uint64_t>(offset);
    if (place.space == Place::frame) return -1;
    return constant(bytes, Source::value, at);
}

bool Operands::destination(const std::string& text, char kind, Draft& draft) {
    if (text == "_") {  // a sink: a register of its own that nobody reads
        registers_.push_back({bytes_of(kind), -1, false});
        use(draft, static_cast<int>(registers_.size()) - 1, true);
        return true;
    }
    const auto found = names_.find(text);
    if (found == names_.end() || found->second.predicate != (kind == 'P')) return false;
    if (registers_[static_cast<size_t>(found->second.id)].bytes != bytes_of(kind)) return false;
    use(draft, found->second.id, true);
    return true;
}

bool Operands::source(const std::string& text, char kind, Draft& draft) {
    if (kind == 'n' && text.front() == '!') {
        if (!source(text.substr(1), 'p', draft)) return false;
        draft.op.negated = true;
        return true;
    }
    const bool predicate = kind == 'p' || kind == 'n';
    const auto found = names_.find(text);
    if (found != names_.end()) {
        if (found->second.predicate != predicate) return false;
        if (registers_[static_cast<size_t>(found->second.id)].bytes != bytes_of(kind)) return false;
        use(draft, found->second.id, false);
        return true;
    }
    int64_t integer;
    int id = -1;
    if (predicate) {
        if (read_integer(text, integer)) id = constant(4, Source::value, integer != 0 ? ~0ull : 0);
    } else {
        id = value_of(text, bytes_of(kind));
    }
    if (id < 0) return false;
    use(draft, id, false);
    return true;
}

bool Operands::address(const std::string& instruction, const std::string& text, Draft& draft, int which) {
    if (text.size() < 3 || text.front() != '[' || text.back() != ']') return false;
    std::string base = text.substr(1, text.size() - 2);
    int64_t offset = 0;
    if (const size_t plus = base.find('+'); plus != std::string::npos) {
        if (!read_integer(base.substr(plus + 1), offset)) return false;
        base = base.substr(0, plus);
    } else if (const size_t minus = base.find('-', 1); minus != std::string::npos) {
        if (!read_integer(base.substr(minus), offset)) return false;
        base = base.substr(0, minus);
    }
    draft.op.offset[which] = offset;
    const auto found = names_.find(base);
    if (found != names_.end()) {
        const uint32_t bytes = registers_[static_cast<size_t>(found->second.id)].bytes;
        if (found->second.predicate || bytes < 4) return false;
        draft.op.wide[which] = bytes == 8;
        use(draft, found->second.id, false);
        return true;
    }
    const auto named = places_.find(base);
    if (named != places_.end() && named->second.space == Place::frame) {
        if (instruction.front() != '(') return false;  // only ld.param and st.param reach it
        draft.op.literal[0] = static_cast<int64_t>(named->second.address);
        draft.op.literal[1] = static_cast<int64_t>(named->second.bytes);
        use(draft, -1, false);
        return true;
    }
    if (named != places_.end() && !takes(instruction, which, named->second.space)) return false;
    const int id = value_of(base, 8);
    if (id < 0) return false;
    draft.op.wide[which] = true;
    use(draft, id, false);
    return true;
}

bool Operands::match(const std::string& instruction, const std::string& form, const std::vector<std::string>& given, Draft& draft, std::string& why) {
    single_ = instruction.find(".f32") != std::string::npos;
    draft.registers.clear();
    draft.written.clear();
    draft.op.negated = false;
    size_t at = 0;
    int literals = 0, addresses = 0;
    const auto one = [&](const std::string& text, char kind) {
        bool fits;
        if (kind == '@') {
            fits = address(instruction, text, draft, addresses++);
        } else if (kind == 'i') {
            int64_t value;
            fits = read_integer(text, value);
            if (fits) draft.op.literal[literals++] = value;
        } else if (std::isupper(static_cast<unsigned char>(kind))) {
            fits = destination(text, kind, draft);
        } else {
            fits = source(text, kind, draft);
        }
        if (!fits) why = "'" + text + "' does not fit";
        return fits;
    };
    for (size_t i = 0; i < form.size(); ++i) {
        if (at >= given.size()) return false;
        if (std::isdigit(static_cast<unsigned char>(form[i]))) {
            const auto count = static_cast<size_t>(form[i] - '0');
            const std::string& text = given[at++];
            if (text.front() != '{') return false;
            const auto parts = split_list(text);
            ++i;
            if (parts.size() != count) return false;
            for (const std::string& part : parts)
                if (!one(part, form[i])) return false;
        } else if (i + 1 < form.size() && form[i + 1] == '|') {
            const size_t bar = given[at].find('|');
            if (bar == std::string::npos) return false;
            if (!one(given[at].substr(0, bar), form[i]) || !one(given[at].substr(bar + 1), form[i + 2])) return false;
            i += 2;
            ++at;
        } else if (!one(given[at++], form[i])) {
            return false;
        }
    }
    return at == given.size();
}

}  // namespace vgpu
