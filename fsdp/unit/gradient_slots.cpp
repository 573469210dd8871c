#include "fsdp/unit/gradient_slots.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "fsdp/base/backstage.h"
#include "fsdp/group/touch_table.h"
#include "fsdp/unit/context.h"
#include "kernels/base/gradient_slot.h"

namespace fsdp {
namespace {

// A backward that accumulates into leaves. One that was asked for the gradients of certain tensors may take this one
// without our hook, and one that builds a graph differentiates it again.
bool fills_leaves() {
  if (torch::autograd::get_current_graph_task_id() == -1 || at::GradMode::is_enabled()) return false;
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  return wanted == nullptr || wanted->empty();
}

std::optional<kernels::GradientSlot> find(const at::Tensor& weight) {
  if (!weight.has_storage() || !fills_leaves()) return std::nullopt;
  const auto entry = TouchTable::instance().find(weight.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  if (entry.group == nullptr || entry.role != Role::kUnsharded) return std::nullopt;
  const size_t index = entry.group->parameter_at(weight.storage_offset());
  // A hook of the program's wants to see this backward's gradient, as it is.
  if (!entry.group->is_parameter(index, weight) || !torch::autograd::impl::hooks(weight).empty()) return std::nullopt;
  const Backstage backstage;
  at::Tensor stand_in = kernels::make_stand_in(weight);
  if (!stand_in.defined() || stand_in.device() != weight.device()) return std::nullopt;
  auto slot = entry.unit->context->open_gradient_slot(*entry.unit, *entry.group, index);
  if (!slot) return std::nullopt;
  slot->target = slot->target.view(weight.sizes());
  slot->stand_in = std::move(stand_in);
  return slot;
}

}  // namespace

void offer_gradient_slots() { kernels::set_gradient_slots(&find); }
void withdraw_gradient_slots() { kernels::set_gradient_slots(nullptr); }

}  // namespace fsdp
