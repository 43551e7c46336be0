// See counters.h.
#include "counters.h"

namespace vgpu {

namespace {

struct Field {
    const char* name;
    uint64_t Counters::*value;
};

constexpr Field FIELDS[] = {
    {"warp_instructions", &Counters::warp_instructions},
    {"divergent_branches", &Counters::divergent_branches},
    {"barriers", &Counters::barriers},
    {"global_load_requests", &Counters::global_load_requests},
    {"global_load_sectors", &Counters::global_load_sectors},
    {"global_store_requests", &Counters::global_store_requests},
    {"global_store_sectors", &Counters::global_store_sectors},
    {"async_copy_requests", &Counters::async_copy_requests},
    {"async_copy_sectors", &Counters::async_copy_sectors},
    {"shared_load_requests", &Counters::shared_load_requests},
    {"shared_load_wavefronts", &Counters::shared_load_wavefronts},
    {"shared_load_least", &Counters::shared_load_least},
    {"shared_store_requests", &Counters::shared_store_requests},
    {"shared_store_wavefronts", &Counters::shared_store_wavefronts},
    {"shared_store_least", &Counters::shared_store_least},
};

}  // namespace

void Counters::add(const Counters& other) {
    for (const Field& field : FIELDS) this->*field.value += other.*field.value;
    for (const auto& [name, count] : other.mix) mix[name] += count;
}

std::string Counters::json() const {
    std::string text = "{";
    for (const Field& field : FIELDS) text += std::string("\"") + field.name + "\": " + std::to_string(this->*field.value) + ", ";
    text += "\"mix\": {";
    bool first = true;
    for (const auto& [name, count] : mix) {
        text += (first ? "\"" : ", \"") + name + "\": " + std::to_string(count);
        first = false;
    }
    return text + "}}";
}

}  // namespace vgpu
