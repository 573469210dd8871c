#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "fsdp/unit/unit.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp {

// For code that reads tensors without a registered operator (a loop over data_ptr(), a foreign kernel): what of them is
// sharded is gathered, as an operator that reads them would have it; others are ignored. Call it where gradients are
// recorded, before a torch::autograd::Function, not in it. COLLECTIVE. Throws what the gather throws.
void touch(at::TensorList tensors);

// Explicit boundaries of a module's forward, for those who do not want to rely on touch: before it the module's own
// unit is gathered and inputs are cast, after it the unit is resharded if its strategy says so and outputs are cast.
// Errors of gathers inside are thrown here. Made by fsdp::forward().
class ForwardScope {
 public:
  // COLLECTIVE. Throws Error(kUsage) if `module` is no module that fully_shard() got.
  explicit ForwardScope(const torch::nn::Module& module);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  // Floating point tensors get Precision::param's dtype where Precision::cast_inputs says so.
  at::Tensor input(const at::Tensor& tensor) const;
  // Floating point tensors get Precision::output's dtype, if that is set.
  at::Tensor output(const at::Tensor& tensor) const;
  // Ends the module's forward. Throws what happened inside its operators.
  void end();

 private:
  std::shared_ptr<UnitState> unit_;
};

// module.forward(arguments...) with explicit boundaries. Tensors among the arguments and a result that is one tensor
// are cast as Precision says; others pass as they are. COLLECTIVE.
template <class Module, class... Arguments>
auto forward(Module& module, Arguments&&... arguments) {
  ForwardScope scope(module);
  const auto cast = [&scope]<class Argument>(Argument&& argument) -> decltype(auto) {
    if constexpr (std::is_same_v<std::remove_cvref_t<Argument>, at::Tensor>) {
      return scope.input(argument);
    } else {
      return std::forward<Argument>(argument);
    }
  };
  auto result = module.forward(cast(std::forward<Arguments>(arguments))...);
  scope.end();
  if constexpr (std::is_same_v<decltype(result), at::Tensor>) {
    return scope.output(result);
  } else {
    return result;
  }
}

}  // namespace fsdp
