// Habits of LibTorch programs. A model that writes into its weights: what a rank wrote becomes what all have, before
// anybody reads or forgets it, where ShardOptions::writes says so. What cannot be right on a sharded model is refused;
// an observer may not throw, so the program hears of it at its next call of the library, or in its next backward.
#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/unit/buffers.h"
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

bool is_narrow(const at::Tensor& tensor) { return tensor.element_size() < 4; }

// Means of narrow numbers are made in fp32.
void agree_on_values(const GroupLinks& links, const std::vector<at::Tensor>& parts, BufferSync sync) {
  std::vector<at::Tensor> exact;
  for (const at::Tensor& part : parts) exact.push_back(is_narrow(part) ? part.to(at::kFloat) : part);
  make_equal(*links.shard, exact, sync, "weights that the model wrote");
  if (links.replicate) make_equal(*links.replicate, exact, sync, "weights that the model wrote, over replicas");
  for (size_t i = 0; i < parts.size(); ++i) {
    if (is_narrow(parts[i])) at::Tensor(parts[i]).copy_(exact[i]);
  }
}

std::vector<size_t> written_parameters(const std::vector<Touch>& writes, const ParameterGroup* group) {
  std::vector<size_t> list;
  for (const Touch& write : writes) {
    if (write.group == group) list.push_back(write.index);
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

}  // namespace

void Context::note_write(const Touch& touch, const char* operator_name) noexcept {
  if (touch.unit->write_scopes > 0) return;
  try {
    touch.group->isolate_unsharded();
  } catch (...) {
    return defer(std::current_exception());
  }
  if (touch.unit->writes == WeightWrites::kRefused || plain_name(operator_name) == "set_") {
    return refuse_write(touch, operator_name);
  }
  pending_writes_.push_back(touch);
}

void Context::refuse_write(const Touch& touch, const char* operator_name) {
  touch.group->distrust_unsharded();
  const std::string& parameter = touch.group->parameter_name(touch.index);
  if (plain_name(operator_name) == "set_") return defer(refusal(ParameterGroup::moved_message(parameter)));
  const bool stays = touch.group->residence() == Residence::kAliased;
  defer(refusal("[", operator_name, "] writes into '", parameter, "', ",
                stays ? "of which every rank has a copy, on this rank alone." : "a gathered copy that is thrown away.",
                " Write to its leaf from fsdp::parameters(), or inside full_parameters(unit, WriteBack::kYes). Where "
                "the model itself does it, choose ShardOptions::writes."));
}

void Context::settle_writes() {
  if (pending_writes_.empty()) return;
  const std::vector<Touch> writes = std::exchange(pending_writes_, {});
  if (error_.present()) return;  // the program hears of that, and nobody knows where the other ranks are
  const Backstage backstage;
  const at::NoGradGuard no_grad;
  for (const UnitState* unit : units_) {
    if (unit == nullptr) continue;
    const BufferSync sync = unit->writes == WeightWrites::kRankZero ? BufferSync::kBroadcast : BufferSync::kMean;
    for (const auto& group : unit->groups) {
      std::vector<at::Tensor> parts;
      for (const size_t i : written_parameters(writes, group.get())) parts.push_back(group->unsharded_part(i));
      if (parts.empty()) continue;
      agree_on_values(group->links(), parts, sync);
      group->write_back_in_forward();
    }
  }
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
