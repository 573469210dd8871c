// Habits of LibTorch programs that cannot be right on a sharded model. An observer may not throw: the program hears of
// it at its next call of the library, or in its next backward.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "fsdp/base/check.h"
#include "fsdp/unit/context.h"
#include "fsdp/unit/observer.h"

namespace fsdp {
namespace {

// Some operators say "aten::" before their name, others do not.
std::string_view plain_name(std::string_view operator_name) {
  constexpr std::string_view kPrefix = "aten::";
  return operator_name.starts_with(kPrefix) ? operator_name.substr(kPrefix.size()) : operator_name;
}

template <class... Parts>
std::exception_ptr refusal(const Parts&... parts) {
  return std::make_exception_ptr(Error(ErrorCode::kUsage, c10::str(parts...)));
}

// Operators that make one number, or one vector for such numbers, of a whole gradient.
bool sums_up(std::string_view name) {
  static constexpr std::string_view kNames[] = {"norm", "linalg_vector_norm", "dot", "vdot", "cat", "mean", "std",
                                                "var"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

void Context::refuse_write(const Touch& touch, const char* operator_name) noexcept {
  if (touch.unit->write_scopes > 0) return;
  touch.group->isolate_unsharded();
  touch.group->distrust_unsharded();
  if (plain_name(operator_name) == "set_") {
    return defer(refusal(ParameterGroup::moved_message(touch.group->parameter_name(touch.index))));
  }
  defer(refusal("[", operator_name, "] writes into '", touch.group->parameter_name(touch.index),
                "', a gathered copy that is thrown away. Write to its leaf from fsdp::parameters(), or inside "
                "full_parameters(unit, WriteBack::kYes)."));
}

// Within a backward it is autograd that adds to it. Module::zero_grad() detaches it, and then lets it go or zeroes it.
void Context::note_mark_use(const Touch& mark, const char* operator_name) noexcept {
  const std::string_view name = plain_name(operator_name);
  if (in_graph_task()) return;
  if (name == "detach" || name == "detach_") return mark.group->suspend_gradient(mark.index);
  if (name == "zero_") return mark.group->zero_gradient(mark.index);
  defer(refusal("[", operator_name, "] uses the gradient of '", mark.group->parameter_name(mark.index),
                "' of module->parameters(), which has none: a sharded model's gradients lie in slices in "
                "fsdp::parameters(module). Build optimizers and averages on these, and clip with "
                "fsdp::clip_grad_norm_(module, max_norm)."));
}

// The norm of a slice is no norm of the gradient: torch::nn::utils::clip_grad_norm_ over leaves would clip each rank by
// a factor of its own, and LBFGS would search along a line of its own.
void Context::note_slice_use(const Touch& slice, const char* operator_name) noexcept {
  if (!sums_up(plain_name(operator_name)) || slice.group->whole_main_weight()) return;
  defer(refusal("[", operator_name, "] reads this rank's slice of a gradient in '", slice.group->unit_name(),
                "' as if it were whole, with a result that differs from rank to rank. Use "
                "fsdp::clip_grad_norm_(module, max_norm) or fsdp::grad_norm(), and optimizers that work element by "
                "element; where the slice itself is meant, clone() it first."));
}

void Context::ignore(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) ignored_.emplace_back(parameter.getIntrusivePtr());
}

bool Context::ignores(const at::Tensor& parameter) const {
  return std::any_of(ignored_.begin(), ignored_.end(), [&](const auto& ignored) {
    return !ignored.expired() && ignored._unsafe_get_target() == parameter.unsafeGetTensorImpl();
  });
}

void Context::check_moved_tensors() const {
  for (const UnitState* unit : units_) {
    if (unit == nullptr) continue;
    for (const auto& group : unit->groups) {
      const auto moved = group->find_moved_parameter();
      FSDP_CHECK(!moved, ParameterGroup::moved_message(*moved));
      group->check_leaves();
    }
  }
}

}  // namespace fsdp
