// Statements to a Program: finds each instruction's form by its whole text, binds operands, follows calls. See decode.h.
#include "decode.h"

#include <algorithm>
#include <set>

#include "call_graph.h"
#include "forms.h"
#include "limits.h"
#include "operands.h"
#include "places.h"
#include "scan.h"
#include "system_calls.h"

namespace vgpu {

namespace {

class Decoder {
public:
    Decoder(const Text& text, const Function& entry, const std::map<std::string, Variable>& addresses)
        : text_(text), entry_(entry), places_(text, entry, addresses), program_(std::make_shared<Program>()) {}

    Kernel run() {
        Kernel kernel;
        kernel.name = entry_.name;
        kernel.max_threads = entry_.max_threads;
        kernel.required = entry_.required;
        called_.push_back(&entry_);
        for (size_t i = 0; i < called_.size(); ++i) function(*called_[i]);
        for (auto& [at, callee] : calls_) program_->ops[at].target = starts_.at(callee);
        places_.write_sizes(kernel, *program_);
        program_->register_bytes = top_;
        kernel.registers = pressure_;
        kernel.program = program_;
        return kernel;
    }

private:
    [[noreturn]] static void refuse(uint32_t line, const std::string& what) {
        throw LoadError(ERROR_INVALID_PTX, "PTX line " + std::to_string(line) + ": " + what);
    }

    void function(const Function& function) {
        starts_[function.name] = static_cast<uint32_t>(program_->ops.size());
        const auto first = static_cast<uint32_t>(program_->ops.size());
        drafts_.clear();
        Operands operands(program_->constants);
        for (const auto& [name, type] : function.registers)
            operands.declare(name, type == "pred" ? 4 : std::max(2u, bytes_of_type("." + type)), type != "pred");
        places_.name_variables(function, operands);
        std::map<std::string, uint32_t> labels;
        std::set<uint32_t> leaders{first};
        for (const Statement& statement : function.body) {
            const auto here = first + static_cast<uint32_t>(drafts_.size());
            if (statement.kind == Statement::label) {
                if (!labels.emplace(statement.name, here).second) refuse(statement.line, "label " + statement.name + " stands twice");
                leaders.insert(here);
                continue;
            }
            instruction(function, statement, operands);
        }
        add_end(function);
        resolve(function, first, labels, leaders);
        for (const uint32_t at : leaders)
            if (at - first < drafts_.size()) drafts_[at - first].op.leader = true;
        uint32_t pressure = 0;
        top_ = allocate_registers(drafts_, first, operands.registers(), program_->constants, program_->tables, top_, pressure);
        if (top_ > REGISTER_FILE_BYTES) refuse(function.line, function.name + ": more registers and immediates than this machine has room for");
        pressure_ += pressure;
        for (Draft& draft : drafts_) program_->ops.push_back(draft.op);
    }

    void instruction(const Function& function, const Statement& statement, Operands& operands) {
        if (statement.name == "call" || statement.name == "call.uni") {
            call(function, statement, operands);
            return;
        }
        drafts_.push_back(bind(function, statement, statement.name, statement.operands, operands));
    }

    // The first form of this name whose operands fit.
    Draft bind(const Function& function, const Statement& statement, std::string name, std::vector<std::string> given,
               Operands& operands) {
        Draft draft;
        draft.op.line = statement.line;
        if (statement.guard != 0) {
            draft.op.guard = statement.guard;
            draft.guard = operands.predicate(statement.predicate);
            if (draft.guard < 0) refuse(statement.line, statement.predicate + " is no predicate register");
        }
        if (name == "bra" || name == "bra.uni" || name == "brx.idx" || name == "brx.idx.uni") {
            if (given.empty()) refuse(statement.line, name + " has no target");
            draft.label = given.back();
            given.pop_back();
        }
        if (name == "ret" || name == "ret.uni") name = function.entry ? "exit" : "ret";
        operands.rename(name, given);
        const std::vector<Form>* forms = Forms::all().find(name);
        if (forms == nullptr)
            refuse(statement.line, "instruction '" + statement.name + "' is not one that this machine runs: add it to "
                                   "tests/virtual_gpu/instructions, with its modifiers, or compile without it");
        std::string why;
        for (const Form& form : *forms) {
            if (!operands.match(name, form.operands, given, draft, why)) continue;
            draft.op.full = form.full;
            draft.op.masked = form.masked;
            draft.op.flow = form.flow;
            draft.op.members = form.members;
            draft.op.aligned = statement.name != "barrier.sync";  // the only barrier that is not
            draft.op.form = form_index(statement.name);
            form.use();
            draft.op.strong = statement.name.find(".volatile") != std::string::npos;  // other orders are refused
            return draft;
        }
        std::string shown;
        for (const std::string& operand : given) shown += (shown.empty() ? "" : ", ") + operand;
        refuse(statement.line, "'" + statement.name + "' does not take the operands " + shown + (why.empty() ? "" : ": " + why));
    }

    uint32_t form_index(const std::string& name) {
        const auto [it, made] = form_ids_.emplace(name, static_cast<uint32_t>(program_->forms.size()));
        if (made) program_->forms.push_back(name);
        return it->second;
    }

    void call(const Function& function, const Statement& statement, Operands& operands) {
        std::vector<std::string> parts = statement.operands;
        std::vector<std::string> results, arguments;
        if (!parts.empty() && parts.front().front() == '(') {
            results = split_list(parts.front());
            parts.erase(parts.begin());
        }
        if (parts.empty()) refuse(statement.line, "a call that names no function");
        const std::string callee = parts.front();
        if (parts.size() > 2) refuse(statement.line, "a call through a register is not run by this machine");
        if (parts.size() == 2) arguments = split_list(parts[1]);
        const auto found = std::find_if(text_.functions.begin(), text_.functions.end(), [&](const Function& other) {
            return other.name == callee && other.has_body;
        });
        if (found == text_.functions.end()) {
            system_call(function, statement, callee, arguments, results, operands);
            return;
        }
        graph_.add(function.name, callee, statement.line);
        if (std::find(called_.begin(), called_.end(), &*found) == called_.end()) called_.push_back(&*found);
        const auto bytes_of = [&](const std::vector<std::string>& names) {
            std::vector<uint64_t> bytes;
            for (const std::string& name : names) bytes.push_back(found->variables.at(name).bytes);
            return bytes;
        };
        const auto from = passed(statement, function, callee, arguments, bytes_of(found->parameters));
        const auto to = passed(statement, function, callee, results, bytes_of(found->results));
        for (size_t i = 0; i < from.size(); ++i) copy_frame(statement, from[i], places_.reserve(*found, found->parameters[i]));
        Draft draft = bind(function, statement, "call", {}, operands);
        calls_.emplace_back(program_->ops.size() + drafts_.size(), callee);
        drafts_.push_back(draft);
        for (size_t i = 0; i < to.size(); ++i) copy_frame(statement, places_.reserve(*found, found->results[i]), to[i]);
    }

    Parameter frame_of(const Statement& statement, const Function& function, const std::string& name) const {
        const Parameter* found = places_.find(function, name);
        if (found == nullptr) refuse(statement.line, "argument " + name + " is no .param variable of " + function.name);
        return *found;
    }

    // Of a call: each of `names`, variables of the caller, against the bytes that stand in the same place of `expected`.
    std::vector<Parameter> passed(const Statement& statement, const Function& function, const std::string& callee,
                                  const std::vector<std::string>& names, const std::vector<uint64_t>& expected) const {
        if (names.size() != expected.size()) refuse(statement.line, callee + " takes another number of arguments or results");
        std::vector<Parameter> found;
        for (size_t i = 0; i < names.size(); ++i) {
            found.push_back(frame_of(statement, function, names[i]));
            if (found[i].bytes != expected[i])
                refuse(statement.line, names[i] + " has " + std::to_string(found[i].bytes) + " bytes where " + callee + " has " +
                                       std::to_string(expected[i]));
        }
        return found;
    }

    void copy_frame(const Statement& statement, Parameter from, Parameter to) {
        Draft draft;
        const Form& form = Forms::all().find("(copy argument)")->front();
        form.use();
        draft.op.full = draft.op.masked = form.full;
        draft.op.line = statement.line;
        draft.op.form = form_index("call");
        draft.op.literal[0] = from.offset;
        draft.op.literal[1] = to.offset;
        draft.op.at[0] = from.bytes;
        drafts_.push_back(draft);
    }

    void system_call(const Function& function, const Statement& statement, const std::string& callee,
                     const std::vector<std::string>& arguments, const std::vector<std::string>& results, Operands& operands) {
        const Signature* signature = system_call_named(callee);
        if (signature == nullptr) refuse(statement.line, "function " + callee + " has no body here and this machine does not provide it");
        Draft draft = bind(function, statement, "(" + callee + ")", {}, operands);
        const auto from = passed(statement, function, callee, arguments, {signature->arguments.begin(), signature->arguments.end()});
        const auto to = passed(statement, function, callee, results, {signature->results.begin(), signature->results.end()});
        for (size_t i = 0; i < from.size(); ++i) draft.op.at[i] = from[i].offset;
        for (size_t i = 0; i < to.size(); ++i) draft.op.literal[i] = to[i].offset;
        drafts_.push_back(draft);
    }

    // A body may end without ret.
    void add_end(const Function& function) {
        Statement statement;
        statement.line = function.body.empty() ? function.line : function.body.back().line;
        statement.name = "ret";
        Operands none(program_->constants);
        drafts_.push_back(bind(function, statement, "ret", {}, none));
    }

    void resolve(const Function& function, uint32_t first, const std::map<std::string, uint32_t>& labels,
                 std::set<uint32_t>& leaders) {
        const auto target = [&](uint32_t line, const std::string& label) {
            const auto found = labels.find(label);
            if (found == labels.end()) refuse(line, "there is no label " + label);
            leaders.insert(found->second);
            return found->second;
        };
        for (size_t i = 0; i < drafts_.size(); ++i) {
            Op& op = drafts_[i].op;
            if (op.flow != Flow::next && op.flow != Flow::collective) leaders.insert(first + static_cast<uint32_t>(i) + 1);
            if (op.flow == Flow::branch) {
                op.target = target(op.line, drafts_[i].label);
            } else if (op.flow == Flow::indexed) {
                const auto found = function.branch_targets.find(drafts_[i].label);
                if (found == function.branch_targets.end()) refuse(op.line, "there is no .branchtargets " + drafts_[i].label);
                std::vector<uint32_t> table;
                for (const std::string& label : found->second) table.push_back(target(op.line, label));
                op.target = static_cast<uint32_t>(program_->tables.size());
                program_->tables.push_back(table);
            }
        }
    }

    const Text& text_;
    const Function& entry_;
    Places places_;
    std::shared_ptr<Program> program_;
    std::vector<Draft> drafts_;
    std::vector<const Function*> called_;
    std::map<std::string, uint32_t> starts_, form_ids_;
    std::vector<std::pair<size_t, std::string>> calls_;
    CallGraph graph_;
    uint32_t top_ = 0, pressure_ = 0;
};

}  // namespace

Kernel decode(const Text& text, const Function& entry, const std::map<std::string, Variable>& addresses) {
    return Decoder(text, entry, addresses).run();
}

}  // namespace vgpu
