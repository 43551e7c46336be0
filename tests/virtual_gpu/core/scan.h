// Characters of PTX text to words, numbers and operands; counts lines. Caller: parse.cpp, declare.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vgpu {

// Letters of names, registers, directives and modifiers ("L2::128B").
bool is_word(char c);

class Scan {
public:
    explicit Scan(std::string text);

    bool end();
    char peek();                    // the next character that is not blank, 0 at the end
    bool accept(char c);
    void expect(char c);
    bool accept_label();            // ':' but not "::"
    bool accept_word(const char* word);
    std::string word();             // refuses where there is none
    uint64_t count(uint64_t least, uint64_t most);  // refuses what is not a number between them
    void until(char c);             // skips, the character included
    void quoted();                  // skips "..."
    void block();                   // skips { ... }
    std::vector<std::string> operands();  // up to ';', blanks taken out, split at commas outside of brackets; none is empty

    uint32_t line() const { return line_; }
    [[noreturn]] void refuse(const std::string& what) const;  // LoadError "PTX line N: what"

private:
    void skip();
    std::string text_;
    size_t at_ = 0;
    uint32_t line_ = 1;
};

// An integer literal of PTX ("0x1F", "017", "0b11", "12U", "-3"); false where the text is none.
bool read_integer(const std::string& text, int64_t& value);
// A floating-point literal as bits: 0f3F800000 (4 bytes), 0d3FF0000000000000 (8), or 1.5 (8). False where it is none.
bool read_real(const std::string& text, uint64_t& bits, int& bytes);
// PTX converts a literal of 64 bits to the type where it is used: the bits of the nearest float32.
uint64_t single_bits(uint64_t bits_of_double);

}  // namespace vgpu
