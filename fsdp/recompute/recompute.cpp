#include "fsdp/recompute/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "fsdp/base/check.h"
#include "fsdp/base/recompute_region.h"
#include "fsdp/recompute/region.h"

namespace fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// inputs: with_anchor().
struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const c10::intrusive_ptr<Region>& region) {
    context->save_for_backward(region->put(inputs));
    context->saved_data["region"] = c10::IValue::make_capsule(region);
    const RecomputeRegion first_run;
    return region->run(inputs.slice(1).vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    constexpr RunTwice kWhat{"recompute", "the function itself"};
    check_records_no_graph(kWhat);
    check_asks_for_all(kWhat);
    const auto region = c10::static_intrusive_pointer_cast<Region>(context->saved_data["region"].toCapsule());
    return run_backward(region->run_again(region->take(context->get_saved_variables())), gradients);
  }
};

}  // namespace

std::vector<at::Tensor> recompute(const TensorListFunction& function, const std::vector<at::Tensor>& inputs,
                                  const std::shared_ptr<HostInputs>& rest) {
  FSDP_CHECK(function != nullptr, "[recompute] got an empty function.");
  if (!at::GradMode::is_enabled()) return function(inputs);
  const variable_list all = with_anchor(inputs);
  const auto region = c10::make_intrusive<Region>(function, inputs, rest);
  return region->with_undefined(RecomputeFunction::apply(at::TensorList(all), region));
}

at::Tensor recompute(const TensorFunction& function, const at::Tensor& input, const std::shared_ptr<HostInputs>& rest) {
  FSDP_CHECK(function != nullptr, "[recompute] got an empty function.");
  const TensorListFunction as_list = [function](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{function(inputs.front())};
  };
  return recompute(as_list, std::vector<at::Tensor>{input}, rest).front();
}

at::Tensor recompute_every(int64_t k, const std::vector<TensorFunction>& blocks, const at::Tensor& input) {
  FSDP_CHECK(k >= 0, "[recompute_every] k: got ", k, ", expected 0 (none) or a positive number.");
  at::Tensor x = input;
  for (size_t i = 0; i < blocks.size(); ++i) {
    x = k > 0 && static_cast<int64_t>(i) % k == 0 ? recompute(blocks[i], x) : blocks[i](x);
  }
  return x;
}

}  // namespace fsdp
