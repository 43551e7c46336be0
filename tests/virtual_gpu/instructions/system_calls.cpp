// What a driver provides to kernels: vprintf and __assertfail (core/system_calls.h), and the copies of the arguments of calls.
// CUDA C++ Programming Guide, formatted output.
//
// Invariant: of a kernel's format only the conversions below reach the host's printf, each with the type that it takes.
#include <cstdio>
#include <cstring>

#include "access.h"
#include "lanes.h"

namespace vgpu {

namespace {

constexpr size_t LONGEST_TEXT = 4096;
constexpr int WIDEST = 1024;  // a field's width and precision

uint8_t* frame_of(Warp& warp, int lane) {
    return warp.parameters.data() + static_cast<size_t>(lane) * warp.block->grid.program.frame_bytes;
}

void copy_argument(Warp& warp, const Op& op, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        uint8_t* frame = frame_of(warp, __builtin_ctz(rest));
        std::memcpy(frame + op.literal[1], frame + op.literal[0], op.at[0]);
    }
}

template <class T>
T argument(Warp& warp, const Op& op, int which, int lane) {
    T value;
    std::memcpy(&value, frame_of(warp, lane) + op.at[which], sizeof value);
    return value;
}

std::string string_at(Warp& warp, uint64_t address, int lane) {
    std::string text;
    Hint hint;
    for (; text.size() < LONGEST_TEXT; ++address) {
        const char c = static_cast<char>(*bytes_at<Space::generic>(warp, address, 1, lane, Use::read, hint));
        if (c == '\0') break;
        text += c;
    }
    return text;
}

// The values behind a format: integers of 32 bits in 4 bytes, all else in 8, each aligned.
class Values {
public:
    Values(Warp& warp, uint64_t address, int lane) : warp_(warp), next_(address), lane_(lane) {}

    uint64_t take(unsigned bytes) {
        next_ = (next_ + bytes - 1) / bytes * bytes;
        uint64_t value = 0;
        std::memcpy(&value, bytes_at<Space::generic>(warp_, next_, bytes, lane_, Use::read, hint_), bytes);
        next_ += bytes;
        ++taken;
        return value;
    }

    int32_t taken = 0;  // what vprintf returns

private:
    Warp& warp_;
    uint64_t next_;
    int lane_;
    Hint hint_;
};

template <class T>
std::string printed(const std::string& conversion, T value) {
    std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, conversion.c_str(), value)), '\0');
    std::snprintf(text.data(), text.size() + 1, conversion.c_str(), value);
    return text;
}

// %[flags][width][.precision][size]type, read from a kernel's format.
class Conversion {
public:
    Conversion(const std::string& format, size_t& at, Values& values, int lane) : format_(format), begin_(at), lane_(lane) {
        while (at < format.size() && std::strchr("-+ #0", format[at]) != nullptr) made_ += format[at++];
        number(at, values, -WIDEST);
        if (at < format.size() && format[at] == '.') {
            made_ += format[at++];
            number(at, values, 0);
        }
        for (const char letter : {'l', 'l'})
            if (at < format.size() && format[at] == letter) ++at, wide_ = true;
        for (int i = 0; i < 2 && !wide_ && at < format.size() && format[at] == 'h'; ++i) short_ += format[at++];
        if (at >= format.size()) refuse(at);
        type_ = format[at++];
        if (type_ == '\0' || std::strchr("%csdiouxXpfFeEgGaA", type_) == nullptr) refuse(at);
    }

    // Takes its value.
    std::string text(Warp& warp, Values& values) const {
        if (type_ == '%') return "%";
        if (type_ == 's') return printed(made_ + 's', string_at(warp, values.take(8), lane_).c_str());
        if (type_ == 'p') return printed(made_ + 'p', reinterpret_cast<void*>(values.take(8)));
        if (std::strchr("fFeEgGaA", type_) != nullptr) {
            double value;
            const uint64_t bits = values.take(8);
            std::memcpy(&value, &bits, 8);
            return printed(made_ + type_, value);
        }
        if (type_ == 'c') return printed(made_ + 'c', static_cast<int>(values.take(4)));
        if (wide_) return printed(made_ + "ll" + type_, static_cast<unsigned long long>(values.take(8)));
        return printed(made_ + short_ + type_, static_cast<unsigned>(values.take(4)));
    }

private:
    void number(size_t& at, Values& values, int least) {
        int found = 0;
        if (at < format_.size() && format_[at] == '*') {
            ++at;
            found = static_cast<int>(values.take(4));
        } else {
            while (at < format_.size() && format_[at] >= '0' && format_[at] <= '9' && found <= WIDEST) found = found * 10 + format_[at++] - '0';
        }
        if (found < least || found > WIDEST) refuse(at);
        if (found != 0) made_ += std::to_string(found);
    }

    [[noreturn]] void refuse(size_t end) const {
        throw Trap{ERROR_LAUNCH_FAILED, "printf: '%" + format_.substr(begin_, end - begin_) + "' is no conversion that kernels have (lane " +
                   std::to_string(lane_) + ")"};
    }

    const std::string& format_;
    size_t begin_;
    int lane_;
    std::string made_ = "%", short_;
    bool wide_ = false;
    char type_ = '\0';
};

void print(Warp& warp, const Op& op, uint32_t mask) {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const int l = __builtin_ctz(rest);
        const std::string format = string_at(warp, argument<uint64_t>(warp, op, 0, l), l);
        Values values(warp, argument<uint64_t>(warp, op, 1, l), l);
        std::string out;
        for (size_t i = 0; i < format.size();) {
            if (format[i++] != '%') {
                out += format[i - 1];
                continue;
            }
            out += Conversion(format, i, values, l).text(warp, values);
        }
        std::fwrite(out.data(), 1, out.size(), stdout);
        std::fflush(stdout);
        std::memcpy(frame_of(warp, l) + op.literal[0], &values.taken, sizeof values.taken);
    }
}

void assertion_failed(Warp& warp, const Op& op, uint32_t mask) {
    const int l = __builtin_ctz(mask);
    throw Trap{ERROR_ASSERT, string_at(warp, argument<uint64_t>(warp, op, 1, l), l) + ":" + std::to_string(argument<uint32_t>(warp, op, 2, l)) +
               ": assertion '" + string_at(warp, argument<uint64_t>(warp, op, 0, l), l) + "' failed (lane " + std::to_string(l) + ")"};
}

}  // namespace

void add_system_calls(Forms& forms) {
    forms.add("(copy argument)", "", &copy_argument);
    forms.add("(vprintf)", "", &print);
    forms.add("(__assertfail)", "", &assertion_failed);
}

}  // namespace vgpu
