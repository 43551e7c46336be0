// The module's heading, ".version" and ".target": which of them this device takes. Caller: parse.cpp.
#pragma once

#include <string>

#include "scan.h"

namespace vgpu {

int read_version(Scan& scan);               // after ".version": 85 for 8.5
std::string read_target(Scan& scan, int version);  // after ".target": its architecture, which an sm_87 runs

}  // namespace vgpu
