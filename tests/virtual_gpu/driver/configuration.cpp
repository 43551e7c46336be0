// Parsing of the VIRTUAL_GPU_ variables. Invariant: a value is either applied or refused, never ignored. Tables are
// left behind at exit on purpose: the executor's threads may still be reading them.
#include "configuration.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

extern char** environ;

namespace vgpu {
namespace {

constexpr std::string_view PREFIX = "VIRTUAL_GPU_";

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& takes) {
    throw std::invalid_argument(name + "=" + value + ": takes " + takes);
}

uint64_t number(const std::string& name, const std::string& value, uint64_t least, uint64_t most) {
    errno = 0;
    char* end = nullptr;
    const unsigned long long read = strtoull(value.c_str(), &end, 10);
    const bool digits = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || errno || *end || read < least || read > most)
        refuse(name, value, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return read;
}

template <class Value>
Value choice(const std::string& name, const std::string& value, const std::map<std::string, Value>& choices) {
    const auto found = choices.find(value);
    if (found != choices.end()) return found->second;
    std::string takes;
    for (const auto& [word, meaning] : choices) takes += (takes.empty() ? "" : ", ") + word;
    refuse(name, value, takes);
}

void set_checks(Options& options, const std::string& name, const std::string& value) {
    options.check_races = options.check_initialised = value == "all";
    if (value == "all" || value == "none") return;
    size_t begin = 0;
    while (begin <= value.size()) {
        const size_t end = std::min(value.find(',', begin), value.size());
        const std::string word = value.substr(begin, end - begin);
        if (word == "races") options.check_races = true;
        else if (word == "initialised") options.check_initialised = true;
        else refuse(name, value, "all, none, or a list of races, initialised");
        begin = end + 1;
    }
}

// Counters are written beside the file and renamed: over a device that would replace it.
void check_counters(const std::string& name, const std::string& path) {
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    struct stat status;
    if ((stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) || access(folder.c_str(), W_OK | X_OK) != 0)
        refuse(name, path, "a file, in a folder that can be written to");
}

// Driver version and the newest PTX it takes: PTX ISA, release notes.
const auto& PTX_OF_DRIVER = *new std::map<std::string, int>{{"12020", 82}, {"12040", 84}, {"12050", 85}, {"12060", 85},
                                                            {"12080", 87}, {"12090", 88}, {"13000", 90}};

}  // namespace

int newest_ptx(int driver_version) { return PTX_OF_DRIVER.at(std::to_string(driver_version)); }

void set_variable(Configuration& configuration, const std::string& name, const std::string& value) {
    Options& options = configuration.options;
    const std::string key = name.compare(0, PREFIX.size(), PREFIX) == 0 ? name.substr(PREFIX.size()) : "";
    const std::map<std::string, bool> yes_or_no{{"0", false}, {"1", true}};
    if (key == "ORDER")
        options.order = choice<Order>(
            name, value, {{"forward", Order::forward}, {"reverse", Order::reverse}, {"random", Order::random}});
    else if (key == "COPIES")
        options.deferred_copies = choice<bool>(name, value, {{"eager", false}, {"deferred", true}});
    else if (key == "SEED") options.seed = number(name, value, 0, UINT64_MAX);
    else if (key == "CHECKS") set_checks(options, name, value);
    else if (key == "COUNT") options.count = choice<bool>(name, value, yes_or_no);
    else if (key == "THREADS") options.threads = static_cast<unsigned>(number(name, value, 1, 256));
    else if (key == "INSTRUCTION_LIMIT") options.instruction_limit = number(name, value, 0, UINT64_MAX);
    else if (key == "MEMORY_MIB") configuration.memory_bytes = number(name, value, 1, 32 << 10) << 20;
    else if (key == "CONTROL") configuration.control_path = value;
    else if (key == "COUNTERS") {
        if (!value.empty()) check_counters(name, value);
        configuration.counters_path = value;
    } else if (key == "DRIVER_VERSION") {
        choice<int>(name, value, PTX_OF_DRIVER);
        configuration.driver_version = atoi(value.c_str());
    } else
        throw std::invalid_argument(name +
                                    " is not a variable of the virtual GPU; it knows VIRTUAL_GPU_ORDER, COPIES, SEED, "
                                    "CHECKS, COUNT, THREADS, INSTRUCTION_LIMIT, MEMORY_MIB, CONTROL, COUNTERS, "
                                    "DRIVER_VERSION");
}

Configuration read_environment() {
    Configuration configuration;
    for (char** entry = environ; entry && *entry; ++entry) {
        if (strncmp(*entry, PREFIX.data(), PREFIX.size()) != 0) continue;
        const std::string text = *entry;
        const size_t equals = text.find('=');
        set_variable(configuration, text.substr(0, equals), equals == std::string::npos ? "" : text.substr(equals + 1));
    }
    return configuration;
}

}  // namespace vgpu
