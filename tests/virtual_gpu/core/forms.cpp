// See forms.h.
#include "forms.h"

#include <stdexcept>

namespace vgpu {

Forms::Forms() {
    add_moves(*this);
    add_integers(*this);
    add_bits(*this);
    add_comparisons(*this);
    add_floats(*this);
    add_halves(*this);
    add_conversions(*this);
    add_loads(*this);
    add_stores(*this);
    add_atomics(*this);
    add_async_copies(*this);
    add_matrices(*this);
    add_warp_wide(*this);
    add_control(*this);
    add_system_calls(*this);
}

const Forms& Forms::all() {
    static const Forms& made = *new Forms;  // never destroyed: kernels may run while the process exits
    return made;
}

const std::vector<Form>* Forms::find(const std::string& name) const {
    const auto found = forms_.find(name);
    return found == forms_.end() ? nullptr : &found->second;
}

std::string Forms::list() const {
    std::string made;
    for (const auto& [name, forms] : forms_)
        for (const Form& form : forms)
            made += text({name, "\t", form.operands, "\t", std::atomic_ref(form.used).load(std::memory_order_relaxed) ? "1" : "0", "\n"});
    return made;
}

void Forms::add(std::string_view name, std::string_view operands, Handler full, Handler masked, Flow flow) {
    auto& known = forms_[std::string(name)];
    for (const Form& form : known)
        if (form.operands == operands) throw std::logic_error(text({"virtual GPU: ", name, " ", operands, " is added twice"}));
    known.push_back({std::string(operands), full, masked, flow});
}

std::string text(std::initializer_list<std::string_view> pieces) {
    std::string made;
    for (const std::string_view piece : pieces) made += piece;
    return made;
}

}  // namespace vgpu
