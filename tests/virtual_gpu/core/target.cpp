// See target.h. PTX ISA 8.5, section 11.1.2; which .target needs which .version: as ptxas 12.6 and 13.0 refuse them.
#include "target.h"

#include <map>
#include <set>

#include "machine.h"

namespace vgpu {

namespace {

constexpr int DEVICE = 87;

// Architectures up to the device's with the first .version that has them; 0 where all that this machine takes do.
const std::map<int, int> ARCHITECTURES = {
    {10, 0}, {11, 0}, {12, 0}, {13, 0}, {20, 0}, {21, 0}, {30, 0}, {32, 0}, {35, 0}, {37, 0}, {50, 0}, {52, 0}, {53, 0},
    {60, 0}, {61, 0}, {62, 0}, {70, 0}, {72, 61}, {75, 63}, {80, 70}, {82, 0}, {86, 71}, {87, 74}};
const std::set<std::string> LATER = {"88", "89", "90", "90a", "100", "100a", "100f", "101", "101a", "101f", "103", "103a", "103f",
                                     "110", "110a", "110f", "120", "120a", "120f", "121", "121a", "121f"};
const std::set<std::string> OPTIONS = {"texmode_unified", "texmode_independent", "debug"};

std::string dotted(int version) { return std::to_string(version / 10) + "." + std::to_string(version % 10); }

}  // namespace

int read_version(Scan& scan) {
    const std::string text = scan.word();
    const size_t point = text.find('.');
    int64_t major, minor;
    if (point == std::string::npos || !read_integer(text.substr(0, point), major) || !read_integer(text.substr(point + 1), minor) ||
        major < 1 || major > 99 || minor < 0 || minor > 9)
        scan.refuse(".version " + text + " is not like 8.5");
    return static_cast<int>(major * 10 + minor);
}

std::string read_target(Scan& scan, int version) {
    const std::string target = scan.word();
    const size_t line = target.find('_');
    const std::string number = line == std::string::npos ? "" : target.substr(line + 1);
    const bool known = target.substr(0, line) == "sm" || target.substr(0, line) == "compute";
    int64_t architecture = 0;
    if (known && LATER.count(number))
        scan.refuse("SM version specified by .target is higher than the device's: " + target + ", this is an sm_" + std::to_string(DEVICE));
    const bool read = known && read_integer(number, architecture) && ARCHITECTURES.count(static_cast<int>(architecture));
    if (!read) scan.refuse("Unsupported .target '" + target + "'");
    if (version < ARCHITECTURES.at(static_cast<int>(architecture)))
        scan.refuse("PTX .version " + dotted(version) + " does not support .target " + target);
    while (scan.accept(',')) {
        const std::string option = scan.word();
        if (!OPTIONS.count(option)) scan.refuse("Unsupported .target '" + option + "'");
    }
    return target;
}

}  // namespace vgpu
