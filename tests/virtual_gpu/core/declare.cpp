// See declare.h. PTX ISA 8.5, section 5.4.
#include "declare.h"

#include <cstring>

#include "machine.h"

namespace vgpu {

uint32_t bytes_of_type(std::string_view type) {
    static const std::map<std::string_view, uint32_t> table = {
        {".b8", 1}, {".u8", 1}, {".s8", 1}, {".b16", 2}, {".u16", 2}, {".s16", 2}, {".f16", 2}, {".bf16", 2},
        {".b32", 4}, {".u32", 4}, {".s32", 4}, {".f32", 4}, {".f16x2", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8},
        {".f64", 8}, {".b128", 16}};
    const auto found = table.find(type);
    return found == table.end() ? 0 : found->second;
}

namespace {

void put(Declared& made, uint64_t at, uint64_t bits, uint32_t bytes) {
    if (made.initial.size() < at + bytes) made.initial.resize(at + bytes);
    std::memcpy(made.initial.data() + at, &bits, bytes);
}

// The bits of one initial value of a variable of `bytes`, or the variable whose address it is.
void initial_value(Scan& scan, Declared& made, uint64_t at) {
    const bool minus = scan.accept('-');
    const std::string text = (minus ? "-" : "") + scan.word();
    int64_t integer;
    uint64_t bits;
    int bytes;
    if (read_integer(text, integer)) {
        put(made, at, static_cast<uint64_t>(integer), made.element);
    } else if (read_real(text, bits, bytes)) {
        if (static_cast<uint32_t>(bytes) != made.element) scan.refuse(text + " does not fit a " + made.type);
        put(made, at, bits, made.element);
    } else if (text == "generic") {
        scan.expect('(');
        made.addresses.emplace_back(at, scan.word());
        scan.expect(')');
        put(made, at, 0, made.element);
    } else if (made.element == 8) {
        made.addresses.emplace_back(at, text);
        put(made, at, 0, 8);
    } else {
        scan.refuse("'" + text + "' is no initial value that this machine knows");
    }
}

void initial_values(Scan& scan, Declared& made, uint64_t& at) {
    if (!scan.accept('{')) {
        initial_value(scan, made, at);
        at += made.element;
        return;
    }
    if (scan.accept('}')) return;
    do initial_values(scan, made, at);
    while (scan.accept(','));
    scan.expect('}');
}

// Alignment and type words before the name.
Declared heading(Scan& scan, const std::string& space) {
    Declared made;
    made.space = space;
    made.line = scan.line();
    for (;;) {
        const std::string word = scan.word();
        if (word == ".align") {
            made.align = static_cast<uint32_t>(scan.number());
        } else if (word == ".ptr") {
            // a hint on where the pointer parameter points to: ".ptr .global .align 16"
            scan.accept_word(".global") || scan.accept_word(".shared") || scan.accept_word(".const") || scan.accept_word(".local");
        } else if (word == ".v2" || word == ".v4") {
            made.element *= static_cast<uint32_t>(word[2] - '0');
        } else if (const uint32_t bytes = bytes_of_type(word)) {
            made.type = word.substr(1);
            made.element *= bytes;
            if (made.align < made.element) made.align = made.element;
            if (scan.peek() != '.') return made;
        } else if (word == ".pred" && space == ".reg") {
            made.type = "pred";
            return made;
        } else {
            scan.refuse("'" + word + "' in the declaration of a " + space + " variable");
        }
    }
}

std::string name_and_size(Scan& scan, Declared& made) {
    const std::string name = scan.word();
    made.bytes = made.element;
    while (scan.accept('[')) {
        if (scan.accept(']')) {
            made.bytes = 0;
        } else {
            made.bytes *= static_cast<uint64_t>(scan.number());
            scan.expect(']');
        }
    }
    return name;
}

}  // namespace

std::string declare_one(Scan& scan, const std::string& space, std::map<std::string, Declared>& into) {
    Declared made = heading(scan, space);
    // ".param .u64 .ptr .global .align 16 name": the hint stands behind the type
    while (scan.peek() == '.') {
        const std::string word = scan.word();
        if (word == ".align") scan.number();
        else if (word != ".ptr" && word != ".global" && word != ".shared" && word != ".const" && word != ".local")
            scan.refuse("'" + word + "' in a parameter list");
    }
    const std::string name = name_and_size(scan, made);
    into[name] = std::move(made);
    return name;
}

void declare(Scan& scan, const std::string& space, std::map<std::string, Declared>& into, const Naming& naming) {
    const Declared model = heading(scan, space);
    do {
        Declared made = model;
        const std::string name = naming(name_and_size(scan, made));
        if (scan.accept('=')) {
            uint64_t at = 0;
            initial_values(scan, made, at);
            if (made.bytes == 0) made.bytes = at;
            if (at > made.bytes) scan.refuse("more initial values than " + name + " has room for");
        }
        into[name] = std::move(made);
    } while (scan.accept(','));
    scan.expect(';');
}

}  // namespace vgpu
