#include "fsdp/unit/forward.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "fsdp/base/check.h"
#include "fsdp/group/registry.h"
#include "fsdp/unit/context.h"
#include "fsdp/unit/observer.h"

namespace fsdp {
namespace {

std::shared_ptr<UnitState> unit_of(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    const auto member = registry::find_parameter(parameter);
    if (!member) continue;
    const auto context = std::dynamic_pointer_cast<Context>(member->group->owner());
    if (!context) continue;
    for (UnitState* unit : context->units()) {
      if (unit == nullptr) continue;
      const auto& modules = unit->modules;
      if (std::find(modules.begin(), modules.end(), &module) != modules.end()) return unit->self.lock();
    }
  }
  FSDP_CHECK(false, "[forward] got a module of type ", module.name(),
             " that is no unit, expected one that fully_shard() was called with. Shard it, or call its forward().");
}

at::Tensor cast(const at::Tensor& tensor, const std::optional<at::ScalarType>& dtype) {
  if (!dtype || !tensor.defined() || !tensor.is_floating_point()) return tensor;
  return tensor.to(*dtype);
}

}  // namespace

void touch(at::TensorList tensors) { observe_read(tensors); }

ForwardScope::ForwardScope(const torch::nn::Module& module) : unit_(unit_of(module)) {
  unit_->context->enter(*unit_, "fsdp::forward");
}

// After an exception nothing is to be done: the next call into the library lets everything rest.
ForwardScope::~ForwardScope() = default;

at::Tensor ForwardScope::input(const at::Tensor& tensor) const {
  return unit_->precision.cast_inputs ? cast(tensor, unit_->precision.param) : tensor;
}

at::Tensor ForwardScope::output(const at::Tensor& tensor) const { return cast(tensor, unit_->precision.output); }

void ForwardScope::end() { unit_->context->leave(*unit_); }

}  // namespace fsdp
