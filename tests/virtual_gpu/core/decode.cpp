// Statements to a Program: finds each instruction's form by its whole text, binds operands, follows calls. See decode.h.
#include "decode.h"

#include <algorithm>
#include <set>

#include "call_graph.h"
#include "forms.h"
#include "operands.h"
#include "scan.h"

namespace vgpu {

namespace {

class Decoder {
public:
    Decoder(const Text& text, const Function& entry, const std::map<std::string, Variable>& addresses)
        : text_(text), entry_(entry), addresses_(addresses), program_(std::make_shared<Program>()) {}

    Kernel run() {
        Kernel kernel;
        kernel.name = entry_.name;
        kernel.max_threads = entry_.max_threads;
        for (const std::string& name : entry_.parameters) {
            const Declared& declared = entry_.variables.at(name);
            const uint32_t at = (kernel.parameter_bytes + declared.align - 1) / declared.align * declared.align;
            kernel.parameters.push_back({at, static_cast<uint32_t>(declared.bytes)});
            kernel_parameters_[name] = at;
            kernel.parameter_bytes = at + static_cast<uint32_t>(declared.bytes);
        }
        place_shared();
        called_.push_back(&entry_);
        for (size_t i = 0; i < called_.size(); ++i) function(*called_[i]);
        for (auto& [at, callee] : calls_) program_->ops[at].target = starts_.at(callee);
        program_->local_bytes = local_;
        program_->frame_bytes = frame_;
        program_->register_bytes = top_;
        kernel.static_shared = program_->static_shared;
        kernel.local_bytes = local_;
        kernel.registers = pressure_;
        kernel.program = program_;
        return kernel;
    }

private:
    [[noreturn]] static void refuse(uint32_t line, const std::string& what) {
        throw LoadError(ERROR_INVALID_PTX, "PTX line " + std::to_string(line) + ": " + what);
    }

    // Module and entry variables in order of their names, each aligned; what the launch sizes stands behind them.
    void place_shared() {
        const auto place = [&](const std::string& name, const Declared& declared) {
            if (declared.space != ".shared" || declared.bytes == 0) return;
            shared_used_ = (shared_used_ + declared.align - 1) / declared.align * declared.align;
            shared_[name] = shared_used_;
            shared_used_ += static_cast<uint32_t>(declared.bytes);
        };
        for (const auto& [name, declared] : text_.variables) place(name, declared);
        for (const Function& function : text_.functions)
            for (const auto& [name, declared] : function.variables) place(function.name + "/" + name, declared);
        program_->static_shared = shared_used_;
        program_->dynamic_shared_at = (shared_used_ + 15) / 16 * 16;
        for (const auto& [name, declared] : text_.variables)
            if (declared.space == ".shared" && declared.bytes == 0) shared_[name] = program_->dynamic_shared_at;
    }

    void function(const Function& function) {
        starts_[function.name] = static_cast<uint32_t>(program_->ops.size());
        const auto first = static_cast<uint32_t>(program_->ops.size());
        drafts_.clear();
        Operands operands(program_->constants);
        for (const auto& [name, type] : function.registers)
            operands.declare(name, type == "pred" ? 4 : std::max(2u, bytes_of_type("." + type)), type != "pred");
        place_variables(function, operands);
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
        pressure_ += pressure;
        for (Draft& draft : drafts_) program_->ops.push_back(draft.op);
    }

    // Local variables, and .param variables of a function body or of a callee, which live in the thread's frame.
    void place_variables(const Function& function, Operands& operands) {
        for (const auto& [name, declared] : function.variables) {
            const auto bytes = static_cast<uint32_t>(declared.bytes);
            if (declared.space == ".shared") {
                operands.name(name, {Place::shared, shared_.at(declared.bytes ? function.name + "/" + name : name)});
            } else if (declared.space == ".local") {
                local_ = (local_ + declared.align - 1) / declared.align * declared.align;
                operands.name(name, {Place::local, local_});
                local_ += bytes;
            } else if (function.entry && kernel_parameters_.count(name)) {
                operands.name(name, {Place::parameter, kernel_parameters_.at(name)});
            } else {
                operands.name(name, {Place::frame, reserve_frame(function.name + "/" + name, bytes).offset});
            }
        }
        for (const auto& [name, declared] : text_.variables) {
            if (declared.space == ".shared") operands.name(name, {Place::shared, shared_.at(name)});
            else if (addresses_.count(name)) operands.name(name, {Place::global, addresses_.at(name).address});
        }
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
            if (!operands.match(form.operands, given, draft, why)) continue;
            draft.op.full = form.full;
            draft.op.masked = form.masked;
            draft.op.flow = form.flow;
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
        if (arguments.size() != found->parameters.size() || results.size() != found->results.size())
            refuse(statement.line, callee + " takes another number of arguments or results");
        for (const auto* names : {&found->parameters, &found->results})
            for (const std::string& name : *names)
                reserve_frame(callee + "/" + name, static_cast<uint32_t>(found->variables.at(name).bytes));
        for (size_t i = 0; i < arguments.size(); ++i)
            copy_frame(statement, frame_of(statement, function, arguments[i]), frames_.at(callee + "/" + found->parameters[i]));
        Draft draft = bind(function, statement, "call", {}, operands);
        calls_.emplace_back(program_->ops.size() + drafts_.size(), callee);
        drafts_.push_back(draft);
        for (size_t i = 0; i < results.size(); ++i)
            copy_frame(statement, frames_.at(callee + "/" + found->results[i]), frame_of(statement, function, results[i]));
    }

    // A place in the thread's frame, the same for every call: CallGraph refuses recursion.
    Parameter reserve_frame(const std::string& key, uint32_t bytes) {
        const auto found = frames_.find(key);
        if (found != frames_.end()) return found->second;
        frame_ = (frame_ + 15) / 16 * 16;
        const Parameter made{frame_, bytes};
        frame_ += bytes;
        return frames_[key] = made;
    }

    Parameter frame_of(const Statement& statement, const Function& function, const std::string& name) const {
        const auto found = frames_.find(function.name + "/" + name);
        if (found == frames_.end()) refuse(statement.line, "argument " + name + " is no .param variable of " + function.name);
        return found->second;
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
        draft.op.at[0] = std::min(from.bytes, to.bytes);
        drafts_.push_back(draft);
    }

    // vprintf and __assertfail: the functions that a driver provides.
    void system_call(const Function& function, const Statement& statement, const std::string& callee,
                     const std::vector<std::string>& arguments, const std::vector<std::string>& results, Operands& operands) {
        const std::vector<Form>* forms = Forms::all().find("(" + callee + ")");
        if (forms == nullptr) refuse(statement.line, "function " + callee + " has no body here and this machine does not provide it");
        Draft draft = bind(function, statement, "(" + callee + ")", {}, operands);
        for (size_t i = 0; i < arguments.size(); ++i) draft.op.at[i] = frame_of(statement, function, arguments[i]).offset;
        for (size_t i = 0; i < results.size(); ++i) draft.op.literal[i] = frame_of(statement, function, results[i]).offset;
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
            if (op.flow != Flow::next) leaders.insert(first + static_cast<uint32_t>(i) + 1);
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
    const std::map<std::string, Variable>& addresses_;
    std::shared_ptr<Program> program_;
    std::vector<Draft> drafts_;
    std::vector<const Function*> called_;
    std::map<std::string, uint32_t> starts_, shared_, kernel_parameters_, form_ids_;
    std::map<std::string, Parameter> frames_;
    std::vector<std::pair<size_t, std::string>> calls_;
    CallGraph graph_;
    uint32_t shared_used_ = 0, local_ = 0, frame_ = 0, top_ = 0, pressure_ = 0;
};

}  // namespace

Kernel decode(const Text& text, const Function& entry, const std::map<std::string, Variable>& addresses) {
    return Decoder(text, entry, addresses).run();
}

}  // namespace vgpu
