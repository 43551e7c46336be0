// PTX text as it was written: statements, not yet instructions. Made by parse.cpp, read by decode.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vgpu {

struct Statement {
    enum Kind : uint8_t { instruction, label } kind = instruction;
    uint32_t line = 0;
    uint8_t guard = 0;                  // 0 none, 1 @p, 2 @!p
    std::string predicate;
    std::string name;                   // the whole mnemonic with every modifier, or the label
    std::vector<std::string> operands;  // "%r1", "[%rd1+4]", "{%r1,%r2}", "%p1|%p2", "12", "(a,b)"; no blanks
};

// .shared, .local, .global, .const and .param variables.
struct Declared {
    std::string space, type;
    uint32_t line = 0, align = 1;
    uint32_t scalar = 0, vector = 1;   // bytes of its type; 2 and 4 with .v2 and .v4
    std::vector<uint64_t> extents;     // of an array, the outermost first; 0: as many as it is given values
    bool external = false;
    uint64_t bytes = 0;           // 0: extern, sized by the launch
    std::vector<std::pair<uint64_t, uint64_t>> initial;       // offset, bits of a value; of .global and .const
    std::vector<std::pair<uint64_t, std::string>> addresses;  // offset, variable whose address stands there
};

struct Function {
    std::string name;
    uint32_t line = 0;
    bool entry = false, has_body = false;
    uint32_t max_threads = 1024;                        // .maxntid, .reqntid
    std::array<uint32_t, 3> required{0, 0, 0};          // .reqntid; 0: any
    std::vector<std::string> parameters, results;       // names, in order
    std::map<std::string, Declared> variables;          // parameters and results among them
    std::map<std::string, std::string> registers;       // name -> type ("b32", "pred", ...)
    std::map<std::string, std::vector<std::string>> branch_targets;
    std::vector<Statement> body;
};

struct Text {
    int version = 0;  // 85 for .version 8.5
    std::string target;
    std::map<std::string, Declared> variables;
    std::vector<Function> functions;
};

uint32_t bytes_of_type(std::string_view type);  // 0 where it is no type

Text parse(const std::string& ptx);  // throws LoadError

}  // namespace vgpu
