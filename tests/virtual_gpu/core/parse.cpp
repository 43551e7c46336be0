// PTX text to statements (syntax.h). Caller: Module. Knows the grammar of PTX ISA 8.5, section 4 and 5, no instruction:
// what an instruction means is decided in decode.cpp. Whatever is not known is refused with its line.
#include <algorithm>
#include <cctype>

#include "declare.h"
#include "limits.h"
#include "machine.h"
#include "scan.h"
#include "syntax.h"
#include "target.h"

namespace vgpu {

namespace {

class Parser {
public:
    explicit Parser(const std::string& ptx) : scan_(ptx) {}

    Text run() {
        heading();
        while (!scan_.end()) module_statement();
        return std::move(text_);
    }

private:
    void heading() {
        if (scan_.end() || scan_.word() != ".version") scan_.refuse("Missing .version directive at the start");
        text_.version = read_version(scan_);
        if (scan_.end() || scan_.word() != ".target") scan_.refuse("Missing .target directive behind .version");
        text_.target = read_target(scan_, text_.version);
    }

    void module_statement() {
        std::string word = scan_.word();
        const bool external = word == ".extern", linked = external || word == ".visible" || word == ".weak" || word == ".common";
        if (linked) word = scan_.word();
        if (word == ".entry" || word == ".func") {
            function(word == ".entry");
        } else if (word == ".global" || word == ".const" || word == ".shared") {
            declare(scan_, word, external, text_.variables, [](const std::string& name) { return name; });
        } else if (linked) {
            scan_.refuse("'" + word + "' where a declaration is expected");
        } else if (word == ".target") {
            text_.target = read_target(scan_, text_.version);
        } else if (word == ".address_size") {
            if (scan_.word() != "64") scan_.refuse("only 64-bit addresses are run");
        } else if (word == ".file") {
            source_file();
        } else if (word == ".pragma") {
            pragma();
        } else if (word == ".section") {
            scan_.word();
            scan_.block();
        } else {
            scan_.refuse("'" + word + "' is not a module statement that this machine knows");
        }
    }

    // .file 1 "a.cu", 1234, 56
    void source_file() {
        scan_.count(0, UINT32_MAX);
        scan_.quoted();
        while (scan_.accept(',')) scan_.count(0, UINT64_MAX);
    }

    // .loc 1 2 3, function_name label+4, inlined_at 1 5 6
    void source_line() {
        for (int i = 0; i < 3; ++i) scan_.count(0, UINT32_MAX);
        while (scan_.accept(',')) {
            const std::string word = scan_.word();
            if (word == "function_name") {
                scan_.word();
                if (scan_.accept('+')) scan_.count(0, UINT32_MAX);
            } else if (word == "inlined_at") {
                for (int i = 0; i < 3; ++i) scan_.count(0, UINT32_MAX);
            } else {
                scan_.refuse("'" + word + "' in a .loc");
            }
        }
    }

    void pragma() {
        do scan_.quoted();
        while (scan_.accept(','));
        scan_.expect(';');
    }

    // nx, ny, nz; what is not given is 1.
    std::array<uint32_t, 3> dimensions() {
        std::array<uint32_t, 3> found{1, 1, 1};
        size_t at = 0;
        do {
            if (at == found.size()) scan_.refuse("more than three dimensions");
            found[at++] = static_cast<uint32_t>(scan_.count(1, UINT16_MAX));
        } while (scan_.accept(','));
        return found;
    }

    std::vector<std::string> parameter_list(Function& made) {
        std::vector<std::string> names;
        scan_.expect('(');
        while (!scan_.accept(')')) {
            const std::string space = scan_.word();
            if (space == ".param" || space == ".reg") {
                names.push_back(declare_one(scan_, space, made.variables));
                if (space == ".reg") made.registers[names.back()] = made.variables.at(names.back()).type;
            } else {
                scan_.refuse("'" + space + "' in a parameter list");
            }
            scan_.accept(',');
        }
        return names;
    }

    void function(bool entry) {
        Function made;
        made.entry = entry;
        made.line = scan_.line();
        if (!entry && scan_.peek() == '(') made.results = parameter_list(made);
        made.name = scan_.word();
        if (scan_.peek() == '(') made.parameters = parameter_list(made);
        bool bounded = false;
        for (;;) {
            if (scan_.accept(';')) break;  // a declaration: .extern .func, or a prototype
            if (scan_.peek() == '{') {
                scan_.expect('{');
                made.has_body = true;
                scopes_ = {{}};
                registers_left_ = REGISTERS_OF_FUNCTION;
                body(made);
                break;
            }
            const std::string word = scan_.word();
            if (word == ".maxntid" || word == ".reqntid") {
                if (bounded) scan_.refuse(".maxntid and .reqntid cannot both be specified");
                bounded = true;
                const auto size = dimensions();
                made.max_threads = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{size[0]} * size[1] * size[2], UINT32_MAX));
                if (word == ".reqntid") made.required = size;
            } else if (word == ".minnctapersm" || word == ".maxnctapersm" || word == ".maxnreg") {
                scan_.count(1, UINT16_MAX);
            } else if (word == ".pragma") {
                pragma();
            } else if (word != ".noreturn") {
                scan_.refuse("'" + word + "' is not a directive of a function that this machine knows");
            }
        }
        for (const Function& other : text_.functions)
            if (other.name == made.name && other.has_body && made.has_body) scan_.refuse(made.name + " is defined twice");
        text_.functions.push_back(std::move(made));
    }

    void body(Function& made) {
        for (;;) {
            const char next = scan_.peek();
            if (next == '{') {
                scan_.expect('{');
                if (scopes_.size() > NESTED_SCOPES) scan_.refuse("more than " + std::to_string(NESTED_SCOPES) + " { inside each other");
                scopes_.emplace_back();
            } else if (next == '}') {
                scan_.expect('}');
                scopes_.pop_back();
                if (scopes_.empty()) return;
            } else if (next == ';') {
                scan_.expect(';');
            } else if (next == '.') {
                directive(made);
            } else {
                statement(made);
            }
        }
    }

    void directive(Function& made) {
        const std::string word = scan_.word();
        if (word == ".reg") {
            const std::string type = scan_.word().substr(1);
            if (bytes_of_type("." + type) == 0 && type != "pred") scan_.refuse("." + type + " is no register type");
            do {
                const std::string name = scan_.word();
                if (scan_.accept('<')) {
                    const uint64_t count = scan_.count(0, registers_left_);
                    scan_.expect('>');
                    registers_left_ -= count;
                    for (uint64_t i = 0; i < count; ++i) made.registers[fresh(made, name + std::to_string(i))] = type;
                } else {
                    made.registers[fresh(made, name)] = type;
                }
            } while (scan_.accept(','));
            scan_.expect(';');
        } else if (word == ".shared" || word == ".local" || word == ".param") {
            declare(scan_, word, false, made.variables, [&](const std::string& name) { return fresh(made, name); });
        } else if (word == ".pragma") {
            pragma();
        } else if (word == ".loc") {
            source_line();
        } else if (word == ".file") {
            source_file();
        } else if (word == ".callprototype" || word == ".extern") {
            scan_.refuse(word + " in a function body is not run by this machine");
        } else {
            scan_.refuse("'" + word + "' is not a statement that this machine knows");
        }
    }

    // A name declared in an inner { } is another one than the same name outside.
    std::string fresh(const Function& made, const std::string& name) {
        const bool outer = scopes_.size() == 1;
        if (outer ? made.registers.count(name) || made.variables.count(name) : scopes_.back().count(name))
            scan_.refuse("'" + name + "' is declared twice");
        return outer ? name : scopes_.back()[name] = name + "#" + std::to_string(++scope_names_);
    }

    void statement(Function& made) {
        Statement found;
        if (scan_.accept('@')) {
            found.guard = scan_.accept('!') ? 2 : 1;
            found.predicate = renamed(scan_.word());
        }
        found.line = scan_.line();
        found.name = scan_.word();
        if (scan_.accept_label()) {
            if (scan_.peek() == '.' && scan_.accept_word(".branchtargets")) {
                auto& targets = made.branch_targets[found.name];
                do targets.push_back(scan_.word());
                while (scan_.accept(','));
                scan_.expect(';');
                return;
            }
            found.kind = Statement::label;
            made.body.push_back(std::move(found));
            return;
        }
        for (std::string& operand : scan_.operands()) found.operands.push_back(renamed(operand));
        made.body.push_back(std::move(found));
    }

    std::string renamed(const std::string& operand) const {
        if (scopes_.size() == 1) return operand;
        std::string out;
        for (size_t i = 0; i < operand.size();) {
            if (!is_word(operand[i]) || std::isdigit(static_cast<unsigned char>(operand[i]))) {
                while (i < operand.size() && std::isalnum(static_cast<unsigned char>(operand[i]))) out += operand[i++];
                if (i < operand.size() && !is_word(operand[i])) out += operand[i++];
                continue;
            }
            size_t end = i;
            while (end < operand.size() && is_word(operand[end]) && operand[end] != '.') ++end;
            if (end == i) {
                out += operand[i++];
                continue;
            }
            const std::string name = operand.substr(i, end - i);
            const std::string* found = &name;
            for (const auto& scope : scopes_)
                if (const auto it = scope.find(name); it != scope.end()) found = &it->second;
            out += *found;
            i = end;
        }
        return out;
    }

    Scan scan_;
    Text text_;
    std::vector<std::map<std::string, std::string>> scopes_;
    int scope_names_ = 0;
    uint64_t registers_left_ = 0;
};

}  // namespace

Text parse(const std::string& ptx) { return Parser(ptx).run(); }

}  // namespace vgpu
