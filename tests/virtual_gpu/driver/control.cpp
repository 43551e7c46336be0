// Reading the control file and deciding which rule strikes (control.h).
//
// Invariant: all members are called with the driver's lock held. A rule with a target strikes at most once a process.
#include "control.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>
#include <stdexcept>

#include "executor.h"

namespace vgpu {
namespace {

constexpr char UNENDED[] = ": its last line does not end";
// How long text may stay half-written while a process runs.
constexpr int64_t HALF_WRITTEN_NS = 1'000'000'000;

bool half_written(const std::string& text) { return !text.empty() && text.back() != '\n'; }

std::string stamp_of(const std::string& path) {
    struct stat status;
    if (stat(path.c_str(), &status)) return "";
    std::ostringstream text;
    text << status.st_ino << ' ' << status.st_size << ' ' << status.st_mtim.tv_sec << '.' << status.st_mtim.tv_nsec;
    return text.str();
}

CUresult fault_of(const std::string& action) {
    if (action == "illegal_address") return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (action == "assert") return CUDA_ERROR_ASSERT;
    if (action == "device_lost") return CUDA_ERROR_UNKNOWN;
    if (action == "out_of_memory") return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

}  // namespace

// Nothing where there is no such file. What is no regular file is not read, and a pipe's writer not waited for.
std::optional<std::string> Control::read() const {
    const std::string name = "VIRTUAL_GPU_CONTROL=" + path_;
    const int file = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) return std::nullopt;
    if (file < 0) throw std::invalid_argument(name + " cannot be read: " + strerror(errno));
    struct stat status;
    const bool regular = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    std::string text;
    char part[4096];
    ssize_t length = 0;
    while (regular && (length = ::read(file, part, sizeof part)) > 0) text.append(part, length);
    const int failed = errno;
    close(file);
    if (!regular) throw std::invalid_argument(name + " is no regular file");
    if (length < 0) throw std::invalid_argument(name + " cannot be read: " + strerror(failed));
    return text;
}

void Control::load(const std::string& text) {
    std::vector<Rule> rules;
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
        line = line.substr(0, line.find('#'));
        line.erase(line.find_last_not_of(" \t\r") + 1);
        line.erase(0, line.find_first_not_of(" \t"));
        if (line.empty()) continue;
        Rule rule = parse_rule(line);
        if (rule.relative) rule.n += counts_[static_cast<int>(rule.target)];
        for (const Rule& known : rules_)
            if (known.text == rule.text) rule = known;
        rules.push_back(rule);
    }
    rules_ = rules;
}

void Control::open(const std::string& path) {
    path_ = path;
    stamp_.clear();
    rules_.clear();
    if (path_.empty()) return;
    stamp_ = stamp_of(path_);
    const std::optional<std::string> text = read();
    if (!text) throw std::invalid_argument("VIRTUAL_GPU_CONTROL=" + path_ + ": " + strerror(ENOENT));
    if (half_written(*text)) throw std::invalid_argument("VIRTUAL_GPU_CONTROL=" + path_ + UNENDED);
    load(*text);
}

void Control::poll() {
    if (path_.empty()) return;
    const std::string stamp = stamp_of(path_);
    if (stamp == stamp_) return;
    try {
        // A file that goes takes its faults with it, and may go after it was found.
        const std::string text = stamp.empty() ? "" : read().value_or("");
        if (half_written(text)) {
            if (stamp != half_stamp_) half_since_ns_ = now_ns();
            half_stamp_ = stamp;
            if (now_ns() - half_since_ns_ > HALF_WRITTEN_NS) throw std::invalid_argument(UNENDED + 2);
            return;
        }
        stamp_ = stamp;
        load(text);
    } catch (const std::invalid_argument& error) {
        fprintf(stderr, "virtual GPU: %s: %s\n", path_.c_str(), error.what());
        abort();
    }
}

// Whether this process may use a rule marked `once`: the first that creates the file beside the control file may.
bool Control::claim(Rule& rule) const {
    if (!rule.once) return true;
    std::ostringstream path;
    path << path_ << ".used." << std::hex << std::hash<std::string>{}(rule.text);
    const int file = ::open(path.str().c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0) return false;
    dprintf(file, "pid=%d %s\n", static_cast<int>(getpid()), rule.text.c_str());
    close(file);
    return true;
}

Injection Control::take(Target target) {
    Injection injection;
    poll();
    const uint64_t count = ++counts_[static_cast<int>(target)];
    for (Rule& rule : rules_) {
        const bool everywhere =
            rule.target == Target::none && rule.action == "slow_down" && target != Target::allocation;
        if (rule.pid && rule.pid != getpid()) continue;
        if (!everywhere && (rule.target != target || rule.n != count || rule.used)) continue;
        if (everywhere && rule.once && !rule.used && !claim(rule)) continue;
        if (!everywhere && !claim(rule)) continue;
        rule.used = true;
        if (const CUresult fault = fault_of(rule.action)) {
            injection.fault = fault;
            injection.text = rule.text;
            injection.node = rule.node;
        } else if (rule.action == "bit_flip") {
            injection.flip = true;
            injection.bit = rule.bit;
            injection.node = rule.node;
        } else if (rule.action == "slow_down") {
            injection.factor *= rule.factor;
        } else if (rule.action == "hang") {
            injection.hang = rule.text;
            injection.timeout_ms = rule.timeout_ms;
        }
        if (!everywhere) fprintf(stderr, "virtual GPU: injecting '%s'\n", rule.text.c_str());
    }
    return injection;
}

bool Control::still_held(const std::string& line) {
    poll();
    for (const Rule& rule : rules_)
        if (rule.text == line) return true;
    return false;
}

std::string Control::lost() const {
    for (const Rule& rule : rules_)
        if (rule.action == "device_lost" && rule.target == Target::none && (!rule.pid || rule.pid == getpid()))
            return rule.text;
    return "";
}

bool Control::counters_wanted() {
    bool wanted = false;
    for (Rule& rule : rules_) {
        if (rule.action != "write_counters" || rule.used || (rule.pid && rule.pid != getpid())) continue;
        rule.used = wanted = true;
    }
    return wanted;
}

}  // namespace vgpu
