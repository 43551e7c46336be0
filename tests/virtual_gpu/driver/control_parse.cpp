// The grammar of a control line (control.h). Invariant: a rule that is returned can strike; everything else is refused.
// Tables are left behind at exit on purpose: the executor's threads may still be reading them.
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>

#include "control.h"

namespace vgpu {
namespace {

// For each action: the keys it takes besides pid and once, and whether it needs a target.
struct Grammar {
    std::set<std::string> keys;
    bool needs_target;
};

const auto& ACTIONS = *new std::map<std::string, Grammar>{
    {"illegal_address", {{"launch", "graph", "node"}, true}},
    {"assert", {{"launch", "graph", "node"}, true}},
    {"hang", {{"launch", "graph", "timeout_ms"}, true}},
    {"bit_flip", {{"launch", "graph", "node", "bit"}, true}},
    {"device_lost", {{"launch", "graph"}, false}},
    {"out_of_memory", {{"allocation"}, true}},
    {"slow_down", {{"launch", "graph", "factor"}, false}},
    {"write_counters", {{"id"}, false}},
};

const auto& TARGETS = *new std::map<std::string, Target>{
    {"launch", Target::launch}, {"graph", Target::graph}, {"allocation", Target::allocation}};

uint64_t whole(const std::string& text, uint64_t least) {
    if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos)
        throw std::invalid_argument("'" + text + "' is not a whole number");
    const uint64_t value = strtoull(text.c_str(), nullptr, 10);
    if (value < least) throw std::invalid_argument("'" + text + "' is less than " + std::to_string(least));
    return value;
}

double factor_of(const std::string& text) {
    char* end = nullptr;
    const double value = strtod(text.c_str(), &end);
    if (text.empty() || *end || !(value >= 1 && value <= 1e6))
        throw std::invalid_argument("'" + text + "' is not a factor from 1 to 1000000");
    return value;
}

void take_value(Rule& rule, const std::string& key, const std::string& value) {
    const auto target = TARGETS.find(key);
    if (target != TARGETS.end()) {
        if (rule.target != Target::none) throw std::invalid_argument("two targets");
        rule.target = target->second;
        rule.relative = !value.empty() && value[0] == '+';
        rule.n = whole(value.substr(rule.relative ? 1 : 0), 1);
    } else if (key == "node") rule.node = whole(value, 1);
    else if (key == "timeout_ms") rule.timeout_ms = whole(value, 1);
    else if (key == "bit") {
        if (whole(value, 0) > 7) throw std::invalid_argument("bit is 0 to 7");
        rule.bit = static_cast<unsigned>(whole(value, 0));
    } else if (key == "factor") rule.factor = factor_of(value);
    else if (key == "pid") rule.pid = static_cast<long>(whole(value, 1));
}

Rule parse(const std::string& line) {
    std::istringstream words(line);
    Rule rule;
    rule.text = line;
    words >> rule.action;
    const auto action = ACTIONS.find(rule.action);
    if (action == ACTIONS.end()) throw std::invalid_argument("unknown action '" + rule.action + "'");
    std::set<std::string> seen;
    std::string word;
    while (words >> word) {
        const size_t equals = word.find('=');
        const std::string key = word.substr(0, equals);
        if (!seen.insert(key).second) throw std::invalid_argument("'" + key + "' is given twice");
        if (word == "once") {
            rule.once = true;
            continue;
        }
        if (equals == std::string::npos || (key != "pid" && !action->second.keys.count(key)))
            throw std::invalid_argument("'" + word + "' means nothing to " + rule.action);
        take_value(rule, key, word.substr(equals + 1));
    }
    if (action->second.needs_target && rule.target == Target::none)
        throw std::invalid_argument(rule.action + " needs " +
                                    (action->second.keys.count("allocation") ? "allocation=N" : "launch=N or graph=N"));
    if (rule.action == "slow_down" && !seen.count("factor")) throw std::invalid_argument("slow_down needs factor=F");
    if (rule.action == "write_counters" && !seen.count("id"))
        throw std::invalid_argument("write_counters needs id=WORD");
    if (seen.count("node") && rule.target != Target::graph) throw std::invalid_argument("node goes with graph=N");
    return rule;
}

}  // namespace

Rule parse_rule(const std::string& line) {
    try {
        return parse(line);
    } catch (const std::invalid_argument& error) {
        throw std::invalid_argument("line '" + line + "': " + error.what());
    }
}

}  // namespace vgpu
