// Variables of PTX text: ".align 16 .b8 name[4][8] = {...}". Caller: parse.cpp.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "scan.h"
#include "syntax.h"

namespace vgpu {

// Makes the name that a variable is kept under; refuses one that is taken.
using Naming = std::function<std::string(const std::string&)>;

// After the space's word: one or more variables up to ';'.
void declare(Scan& scan, const std::string& space, bool external, std::map<std::string, Declared>& into, const Naming& naming);
// One parameter of a list, up to ',' or ')'. Returns its name.
std::string declare_one(Scan& scan, const std::string& space, std::map<std::string, Declared>& into);

}  // namespace vgpu
