// See scan.h.
#include "scan.h"

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "machine.h"

namespace vgpu {

bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.' || c == '#';
}

Scan::Scan(std::string text) : text_(std::move(text)) {}

void Scan::refuse(const std::string& what) const {
    throw LoadError(ERROR_INVALID_PTX, "PTX line " + std::to_string(line_) + ": " + what);
}

void Scan::skip() {
    while (at_ < text_.size()) {
        const char c = text_[at_];
        if (c == '\n') {
            ++line_;
            ++at_;
        } else if (std::isspace(static_cast<unsigned char>(c))) {
            ++at_;
        } else if (c != '/') {
            return;
        } else if (text_.compare(at_, 2, "//") == 0) {
            while (at_ < text_.size() && text_[at_] != '\n') ++at_;
        } else if (text_.compare(at_, 2, "/*") == 0) {
            const size_t close = text_.find("*/", at_ + 2);
            if (close == std::string::npos) refuse("a comment does not end");
            for (; at_ < close + 2; ++at_) line_ += text_[at_] == '\n';
        } else {
            return;
        }
    }
}

bool Scan::end() {
    skip();
    return at_ >= text_.size();
}

char Scan::peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
}

bool Scan::accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
}

void Scan::expect(char c) {
    if (!accept(c)) {
        if (end()) refuse(std::string("the text ends where '") + c + "' is expected");
        refuse(std::string("'") + c + "' is expected, not '" + text_[at_] + "'");
    }
}

bool Scan::accept_label() {
    if (peek() != ':' || text_.compare(at_, 2, "::") == 0) return false;
    ++at_;
    return true;
}

bool Scan::accept_word(const char* word) {
    skip();
    if (text_.compare(at_, std::strlen(word), word) != 0) return false;
    at_ += std::strlen(word);
    return true;
}

std::string Scan::word() {
    skip();
    const size_t start = at_;
    while (at_ < text_.size()) {
        if (is_word(text_[at_])) {
            ++at_;
        } else if (text_[at_] == ':' && text_.compare(at_, 2, "::") == 0 && at_ > start) {
            at_ += 2;
        } else {
            break;
        }
    }
    if (at_ == start) {
        if (at_ >= text_.size()) refuse("the text ends in the middle of a statement");
        refuse(std::string("a name is expected, not '") + text_[at_] + "'");
    }
    return text_.substr(start, at_ - start);
}

uint64_t Scan::count(uint64_t least, uint64_t most) {
    const bool minus = accept('-');
    const std::string text = word();
    int64_t value;
    if (!read_integer(text, value)) refuse("a number is expected, not '" + text + "'");
    const auto found = static_cast<uint64_t>(value);
    if (minus || found < least || found > most)
        refuse((minus ? "-" : "") + text + " where a number from " + std::to_string(least) + " to " + std::to_string(most) + " is expected");
    return found;
}

void Scan::until(char c) {
    while (at_ < text_.size() && text_[at_] != c) {
        if (text_[at_] == '\n') ++line_;
        ++at_;
    }
    expect(c);
}

void Scan::quoted() {
    expect('"');
    until('"');
}

void Scan::block() {
    expect('{');
    until('}');
}

std::vector<std::string> Scan::operands() {
    std::vector<std::string> found;
    std::string now;
    int depth = 0;
    const auto take = [&] {
        if (now.empty()) refuse("an operand is missing");
        found.push_back(now);
        now.clear();
    };
    for (;;) {
        const size_t before = at_;
        const char c = peek();
        if (c == '\0') refuse("the text ends in the middle of an instruction");
        if (c == ';' && depth == 0) break;
        if (at_ != before && !now.empty() && is_word(now.back()) && is_word(c)) refuse("',' is expected behind '" + now + "'");
        if (c == ';') refuse("a bracket does not close");
        ++at_;
        if (c == ',' && depth == 0) {
            take();
            continue;
        }
        depth += (c == '[' || c == '{' || c == '(') - (c == ']' || c == '}' || c == ')');
        if (depth < 0) refuse("a bracket closes that was not opened");
        now += c;
    }
    expect(';');
    if (!now.empty() || !found.empty()) take();
    return found;
}

bool read_integer(const std::string& text, int64_t& value) {
    const bool minus = !text.empty() && text[0] == '-';
    std::string digits = text.substr(minus);
    if (digits.empty() || !std::isdigit(static_cast<unsigned char>(digits[0]))) return false;
    if (digits.back() == 'U' || digits.back() == 'u') digits.pop_back();
    int base = 10;
    if (digits.size() > 2 && (digits[1] == 'x' || digits[1] == 'X')) base = 16;
    else if (digits.size() > 2 && (digits[1] == 'b' || digits[1] == 'B')) base = 2;
    else if (digits.size() > 1 && digits[0] == '0') base = 8;
    char* rest = nullptr;
    errno = 0;
    const uint64_t read = std::strtoull(digits.c_str() + (base == 16 || base == 2 ? 2 : 0), &rest, base);
    if (errno != 0 || *rest != '\0') return false;
    value = static_cast<int64_t>(minus ? 0 - read : read);
    return true;
}

bool read_real(const std::string& text, uint64_t& bits, int& bytes) {
    const bool minus = !text.empty() && text[0] == '-';
    const std::string body = text.substr(minus);
    if (body.size() == 10 && body[0] == '0' && (body[1] == 'f' || body[1] == 'F')) bytes = 4;
    else if (body.size() == 18 && body[0] == '0' && (body[1] == 'd' || body[1] == 'D')) bytes = 8;
    else if (body.find('.') != std::string::npos && std::isdigit(static_cast<unsigned char>(body[0]))) {
        char* rest = nullptr;
        const double value = std::strtod(body.c_str(), &rest) * (minus ? -1 : 1);
        if (*rest != '\0') return false;
        std::memcpy(&bits, &value, 8);
        bytes = 8;
        return true;
    } else {
        return false;
    }
    char* rest = nullptr;
    bits = std::strtoull(body.c_str() + 2, &rest, 16);
    if (minus) bits ^= 1ull << (bytes * 8 - 1);
    return *rest == '\0';
}

uint64_t single_bits(uint64_t bits_of_double) {
    double value;
    std::memcpy(&value, &bits_of_double, 8);
    const auto single = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &single, 4);
    return bits;
}

}  // namespace vgpu
