// PTX text to statements (syntax.h). Caller: Module. Knows the grammar of PTX ISA 8.5, section 4 and 5, no instruction:
// what an instruction means is decided in decode.cpp. Whatever is not known is refused with its line.
#include <cctype>
#include <cstring>

#include "declare.h"
#include "machine.h"
#include "scan.h"
#include "syntax.h"

namespace vgpu {

namespace {

class Parser {
public:
    explicit Parser(const std::string& ptx) : scan_(ptx) {}

    Text run() {
        while (!scan_.end()) module_statement();
        if (text_.version == 0) scan_.refuse("no .version: this is not PTX text");
        return std::move(text_);
    }

private:
    void module_statement() {
        const std::string word = scan_.word();
        if (word == ".version") {
            const std::string number = scan_.word();
            if (std::sscanf(number.c_str(), "%d", &text_.version) != 1 || number.find('.') == std::string::npos)
                scan_.refuse(".version " + number + " is not like 8.5");
            text_.version = text_.version * 10 + std::atoi(number.c_str() + number.find('.') + 1);
        } else if (word == ".target") {
            text_.target = scan_.word();
            while (scan_.accept(',')) scan_.word();
        } else if (word == ".address_size") {
            if (scan_.word() != "64") scan_.refuse("only 64-bit addresses are run");
        } else if (word == ".file" || word == ".loc") {
            scan_.rest_of_line();
        } else if (word == ".pragma") {
            scan_.until(';');
        } else if (word == ".section") {
            scan_.word();
            scan_.block();
        } else if (word == ".visible" || word == ".weak" || word == ".extern" || word == ".common") {
            return;  // what follows is the declaration itself
        } else if (word == ".entry" || word == ".func") {
            function(word == ".entry");
        } else if (word == ".global" || word == ".const" || word == ".shared") {
            declare(scan_, word, text_.variables, [](const std::string& name) { return name; });
        } else {
            scan_.refuse("'" + word + "' is not a module statement that this machine knows");
        }
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
        for (;;) {
            if (scan_.accept(';')) break;  // a declaration: .extern .func, or a prototype
            if (scan_.peek() == '{') {
                scan_.expect('{');
                made.has_body = true;
                scopes_ = {{}};
                body(made);
                break;
            }
            const std::string word = scan_.word();
            if (word == ".maxntid") {
                made.max_threads = 1;
                do made.max_threads *= static_cast<uint32_t>(scan_.number());
                while (scan_.accept(','));
            } else if (word == ".reqntid") {
                made.max_threads = 1;
                do made.max_threads *= static_cast<uint32_t>(scan_.number());
                while (scan_.accept(','));
            } else if (word == ".minnctapersm" || word == ".maxnctapersm" || word == ".maxnreg") {
                scan_.number();
            } else if (word == ".noreturn" || word == ".pragma") {
                if (word == ".pragma") scan_.until(';');
            } else {
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
                    const auto count = scan_.number();
                    scan_.expect('>');
                    for (int64_t i = 0; i < count; ++i) made.registers[fresh(name + std::to_string(i))] = type;
                } else {
                    made.registers[fresh(name)] = type;
                }
            } while (scan_.accept(','));
            scan_.expect(';');
        } else if (word == ".shared" || word == ".local" || word == ".param") {
            declare(scan_, word, made.variables, [this](const std::string& name) { return fresh(name); });
        } else if (word == ".pragma") {
            scan_.until(';');
        } else if (word == ".loc" || word == ".file") {
            scan_.rest_of_line();
        } else if (word == ".callprototype" || word == ".extern") {
            scan_.refuse(word + " in a function body is not run by this machine");
        } else {
            scan_.refuse("'" + word + "' is not a statement that this machine knows");
        }
    }

    // A name declared in an inner { } is another one than the same name outside.
    std::string fresh(const std::string& name) {
        if (scopes_.size() == 1) return name;
        std::string made = name + "#" + std::to_string(++scope_names_);
        scopes_.back()[name] = made;
        return made;
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
};

}  // namespace

Text parse(const std::string& ptx) { return Parser(ptx).run(); }

}  // namespace vgpu
