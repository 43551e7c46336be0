// See places.h.
#include "places.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "limits.h"
#include "scan.h"

namespace vgpu {

namespace {

uint64_t aligned(uint64_t at, uint64_t align) { return (at + align - 1) / align * align; }

void bound(uint32_t line, const Function& entry, const char* what, uint64_t bytes, uint64_t most) {
    if (bytes <= most) return;
    char text[96];
    std::snprintf(text, sizeof text, " uses too much %s (0x%llx bytes, 0x%llx max)", what, static_cast<unsigned long long>(bytes),
                  static_cast<unsigned long long>(most));
    throw LoadError(ERROR_INVALID_PTX, "PTX line " + std::to_string(line) + ": Entry function '" + entry.name + "'" + text);
}

std::vector<std::string> names_in(const std::string& operand) {
    std::vector<std::string> found;
    for (size_t at = 0, end; at < operand.size(); at = end + 1) {
        for (end = at; end < operand.size() && is_word(operand[end]);) ++end;
        if (end > at) found.push_back(operand.substr(at, end - at));
    }
    return found;
}

// The entry and all functions that it calls, by whatever way; `named` becomes all that their statements name.
std::vector<const Function*> reached_from(const Text& text, const Function& entry, std::set<std::string>& named) {
    std::map<std::string, const Function*> bodies;
    for (const Function& function : text.functions)
        if (function.has_body) bodies[function.name] = &function;
    std::vector<const Function*> reached{&entry};
    std::set<const Function*> seen{&entry};
    for (size_t i = 0; i < reached.size(); ++i)
        for (const Statement& statement : reached[i]->body)
            for (const std::string& operand : statement.operands)
                for (const std::string& name : names_in(operand)) {
                    named.insert(name);
                    const auto body = bodies.find(name);
                    if (body != bodies.end() && seen.insert(body->second).second) reached.push_back(body->second);
                }
    return reached;
}

}  // namespace

Places::Places(const Text& text, const Function& entry, const std::map<std::string, Variable>& globals)
    : text_(text), entry_(entry), globals_(globals) {
    place_parameters();
    place_shared();
}

void Places::place_parameters() {
    const uint64_t most = text_.version < 81 ? ENTRY_PARAMETER_BYTES_BEFORE_8_1 : ENTRY_PARAMETER_BYTES;
    for (const std::string& name : entry_.parameters) {
        const Declared& declared = entry_.variables.at(name);
        const uint64_t at = aligned(parameter_bytes_, declared.align);
        parameter_bytes_ = at + declared.bytes;
        bound(declared.line, entry_, "parameter space", parameter_bytes_, most);
        parameter_list_.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(declared.bytes)});
        parameters_[name] = at;
    }
}

// In order of their names, each aligned; what the launch sizes stands behind them. As ptxas counts: variables of the
// functions that are reached, and those of the module that they name.
void Places::place_shared() {
    const auto place = [&](const std::string& key, const Declared& declared) {
        if (declared.space != ".shared" || declared.bytes == 0) return;
        const uint64_t at = aligned(shared_bytes_, declared.align);
        shared_bytes_ = at + declared.bytes;
        bound(declared.line, entry_, "shared data", shared_bytes_, STATIC_SHARED_BYTES);
        shared_[key] = at;
    };
    std::set<std::string> named;
    const auto reached = reached_from(text_, entry_, named);
    for (const auto& [name, declared] : text_.variables)
        if (named.count(name)) place(name, declared);
    for (const Function* function : reached)
        for (const auto& [name, declared] : function->variables) place(function->name + "/" + name, declared);
    for (const auto& [name, declared] : text_.variables)
        if (declared.space == ".shared" && declared.bytes == 0) shared_[name] = aligned(shared_bytes_, 16);
}

void Places::name_variables(const Function& function, Operands& operands) {
    for (const auto& [name, declared] : function.variables) {
        if (declared.space == ".shared") {
            operands.name(name, {Place::shared, shared_.at(function.name + "/" + name)});
        } else if (declared.space == ".local") {
            const uint64_t at = aligned(local_, declared.align);
            local_ = at + declared.bytes;
            bound(declared.line, entry_, "local memory", local_ + frame_, LOCAL_BYTES);
            operands.name(name, {Place::local, at});
        } else if (function.entry && parameters_.count(name)) {
            operands.name(name, {Place::parameter, parameters_.at(name)});
        } else {
            const Parameter placed = reserve(function, name);
            operands.name(name, {Place::frame, placed.offset, placed.bytes});
        }
    }
    for (const auto& [name, declared] : text_.variables) {
        if (function.variables.count(name)) continue;  // the inner one is meant
        if (declared.space == ".shared" && shared_.count(name)) operands.name(name, {Place::shared, shared_.at(name)});
        else if (declared.space == ".const") operands.name(name, {Place::constant, globals_.at(name).address});
        else if (globals_.count(name)) operands.name(name, {Place::global, globals_.at(name).address});
    }
}

Parameter Places::reserve(const Function& function, const std::string& name) {
    if (const Parameter* found = find(function, name)) return *found;
    const Declared& declared = function.variables.at(name);
    const uint64_t at = aligned(frame_, 16);
    frame_ = at + declared.bytes;
    bound(declared.line, entry_, "local memory", local_ + frame_, LOCAL_BYTES);
    return frames_[function.name + "/" + name] = {static_cast<uint32_t>(at), static_cast<uint32_t>(declared.bytes)};
}

const Parameter* Places::find(const Function& function, const std::string& name) const {
    const auto found = frames_.find(function.name + "/" + name);
    return found == frames_.end() ? nullptr : &found->second;
}

void Places::write_sizes(Kernel& kernel, Program& program) const {
    kernel.parameters = parameter_list_;
    kernel.parameter_bytes = static_cast<uint32_t>(parameter_bytes_);
    kernel.static_shared = program.static_shared = static_cast<uint32_t>(shared_bytes_);
    program.dynamic_shared_at = static_cast<uint32_t>(aligned(shared_bytes_, 16));
    kernel.local_bytes = program.local_bytes = static_cast<uint32_t>(local_);
    program.frame_bytes = static_cast<uint32_t>(frame_);
}

}  // namespace vgpu
