// See declare.h. PTX ISA 8.5, section 5.4. What is refused is what ptxas 12.6 refuses, and what limits.h bounds.
#include "declare.h"

#include "limits.h"
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

// The bits of one initial value, or the variable whose address it is.
void initial_value(Scan& scan, Declared& made, uint64_t at) {
    const bool minus = scan.accept('-');
    const std::string text = (minus ? "-" : "") + scan.word();
    int64_t integer;
    uint64_t bits;
    int bytes;
    if (read_integer(text, integer)) {
        made.initial.emplace_back(at, static_cast<uint64_t>(integer));
    } else if (read_real(text, bits, bytes)) {
        if (bytes == 8 && made.type == "f32") bits = single_bits(bits), bytes = 4;
        if (static_cast<uint32_t>(bytes) != made.scalar) scan.refuse(text + " does not fit a " + made.type);
        made.initial.emplace_back(at, bits);
    } else if (made.scalar == 8) {
        const bool generic = text == "generic" && scan.accept('(');
        made.addresses.emplace_back(at, generic ? scan.word() : text);
        if (generic) scan.expect(')');
    } else {
        scan.refuse("'" + text + "' is no initial value that this machine knows");
    }
}

// Braces for each extent from `depth` on, then for a vector; what is not given is zero.
void initial_values(Scan& scan, Declared& made, const std::vector<uint64_t>& extents, size_t depth, uint64_t at) {
    if (depth == extents.size()) {
        if (scan.peek() == '{') scan.refuse("an initial value in more braces than the variable has dimensions");
        initial_value(scan, made, at);
        return;
    }
    uint64_t bytes = made.scalar;  // of one of these
    for (size_t i = depth + 1; i < extents.size(); ++i) bytes *= extents[i];
    scan.expect('{');
    if (scan.accept('}')) return;
    uint64_t given = 0;
    do {
        if (extents[depth] != 0 && given == extents[depth])
            scan.refuse("more initial values than the " + std::to_string(extents[depth]) + " that there is room for");
        initial_values(scan, made, extents, depth + 1, at + given++ * bytes);
    } while (scan.accept(','));
    scan.expect('}');
    if (extents[depth] == 0) made.bytes = given * bytes;
}

uint32_t alignment(Scan& scan) {
    const auto align = static_cast<uint32_t>(scan.count(1, ALIGNMENT));
    if ((align & (align - 1)) != 0) scan.refuse(".align " + std::to_string(align) + " is no power of two");
    return align;
}

// Alignment and type words before the name.
Declared heading(Scan& scan, const std::string& space) {
    Declared made;
    made.space = space;
    made.line = scan.line();
    bool pointer = false;  // what follows says where it points to: ".ptr .global .align 16"
    do {
        const std::string word = scan.word();
        const uint32_t bytes = bytes_of_type(word);
        if (word == ".align") {
            const uint32_t align = alignment(scan);
            if (!pointer) made.align = align;
        } else if (word == ".ptr") {
            pointer = true;
            scan.accept_word(".global") || scan.accept_word(".shared") || scan.accept_word(".const") || scan.accept_word(".local");
        } else if ((word == ".v2" || word == ".v4") && made.vector == 1) {
            made.vector = static_cast<uint32_t>(word[2] - '0');
        } else if (bytes != 0 && made.scalar == 0) {
            made.type = word.substr(1);
            made.scalar = bytes;
        } else if (word == ".pred" && space == ".reg" && made.scalar == 0) {
            made.type = "pred";
            made.scalar = 4;
        } else {
            scan.refuse("'" + word + "' in the declaration of a " + space + " variable");
        }
    } while (made.scalar == 0 || scan.peek() == '.');
    const uint32_t element = made.scalar * made.vector;
    if (element > VECTOR_BYTES) scan.refuse("a vector of " + std::to_string(element) + " bytes: 16 at most");
    if (made.align < element) made.align = element;
    return made;
}

std::string name_and_size(Scan& scan, Declared& made) {
    const std::string name = scan.word();
    made.bytes = uint64_t{made.scalar} * made.vector;
    while (scan.accept('[')) {
        if (made.extents.size() == DIMENSIONS) scan.refuse(name + " has more than " + std::to_string(DIMENSIONS) + " dimensions");
        made.extents.push_back(made.extents.empty() && scan.peek() == ']' ? 0 : scan.count(1, VARIABLE_BYTES));
        scan.expect(']');
        if (__builtin_mul_overflow(made.bytes, made.extents.back(), &made.bytes) || made.bytes > VARIABLE_BYTES)
            scan.refuse(name + " is larger than " + std::to_string(VARIABLE_BYTES) + " bytes");
    }
    return name;
}

}  // namespace

std::string declare_one(Scan& scan, const std::string& space, std::map<std::string, Declared>& into) {
    Declared made = heading(scan, space);
    const std::string name = name_and_size(scan, made);
    if (made.bytes == 0) scan.refuse("parameter " + name + " has no size");
    if (!into.emplace(name, std::move(made)).second) scan.refuse("'" + name + "' is declared twice");
    return name;
}

void declare(Scan& scan, const std::string& space, bool external, std::map<std::string, Declared>& into, const Naming& naming) {
    Declared model = heading(scan, space);
    model.external = external;
    do {
        Declared made = model;
        const std::string name = naming(name_and_size(scan, made));
        if (scan.accept('=')) {
            if (space != ".global" && space != ".const") scan.refuse("a " + space + " variable takes no initial value");
            std::vector<uint64_t> extents = made.extents;
            if (made.vector > 1) extents.push_back(made.vector);
            initial_values(scan, made, extents, 0, 0);
        }
        if (made.bytes == 0 && !(external && space == ".shared")) scan.refuse(name + " has no size");
        // a variable may be declared as external before or after it is defined
        const auto [known, fresh] = into.try_emplace(name, made);
        if (!fresh && !external && !known->second.external) scan.refuse("'" + name + "' is declared twice");
        if (!fresh && !external) known->second = std::move(made);
    } while (scan.accept(','));
    scan.expect(';');
}

}  // namespace vgpu
