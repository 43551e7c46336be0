// The operands of an instruction: names to virtual registers, constants and addresses. Caller: decode.cpp.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "decode.h"

namespace vgpu {

// Where a named variable lies; `address` is an offset into its space, or an address for global ones.
struct Place {
    enum Space : uint8_t { shared, local, parameter, frame, global, constant } space;
    uint64_t address;
    uint64_t bytes = 0;  // of a variable in the frame
};

class Operands {
public:
    explicit Operands(std::vector<Constant>& constants) : constants_(constants) {}

    void declare(const std::string& name, uint32_t bytes, bool data);
    void name(const std::string& name, Place place) { places_[name] = place; }
    const std::vector<VirtualRegister>& registers() const { return registers_; }

    int predicate(const std::string& name) const;  // -1 where it is no predicate register
    // Some texts mean another instruction by their operands: a .param variable of a call, %clock.
    void rename(std::string& instruction, std::vector<std::string>& given) const;
    // Fills draft's operands if `given` fits a form of `instruction`; `why` then or else tells the first thing that did not.
    bool match(const std::string& instruction, const std::string& form, const std::vector<std::string>& given, Draft& draft, std::string& why);

private:
    bool destination(const std::string& text, char kind, Draft& draft);
    bool source(const std::string& text, char kind, Draft& draft);
    bool address(const std::string& instruction, const std::string& text, Draft& draft, int which);
    int constant(uint32_t bytes, Source source, uint64_t value);
    int value_of(const std::string& text, uint32_t bytes);  // an immediate, a special register, an address; -1 otherwise
    void use(Draft& draft, int id, bool written);

    struct Named {
        int id;
        bool predicate;
    };
    std::vector<Constant>& constants_;
    bool single_ = false;  // a literal of 64 bits may stand for a float32 in the instruction that is matched
    std::vector<VirtualRegister> registers_;
    std::unordered_map<std::string, Named> names_;
    std::unordered_map<std::string, Place> places_;
    std::map<std::tuple<uint32_t, int, uint64_t>, int> known_;
};

std::vector<std::string> split_list(const std::string& text);  // "{a,b}" or "(a,b)" to a, b

}  // namespace vgpu
