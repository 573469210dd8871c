#include "kernels/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/List.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "kernels/dispatch.h"

namespace fsdp::kernels {
namespace {

using OneDnnLinear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                std::string_view, c10::List<std::optional<at::Scalar>>,
                                std::optional<std::string_view>);

// oneDNN's linear for dense tensors, which is there for compiled graphs; absent in builds without oneDNN.
const std::optional<c10::TypedOperatorHandle<OneDnnLinear>>& find_onednn() {
  static const auto op = []() -> std::optional<c10::TypedOperatorHandle<OneDnnLinear>> {
    const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!schema || !at::hasMKLDNN()) return std::nullopt;
    return schema->typed<OneDnnLinear>();
  }();
  return op;
}

// a [m, k] times b [n, k] transposed; strided views are fine.
at::Tensor onednn_product(const at::Tensor& a, const at::Tensor& b) {
  return find_onednn()->call(a, b, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return onednn_product(x, weight);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor grad = grads[0].contiguous();
    at::Tensor grad_x, grad_weight;
    if (context->needs_input_grad(0)) grad_x = onednn_product(grad, weight.t());
    if (context->needs_input_grad(1)) grad_weight = onednn_product(grad.flatten(0, -2).t(), x.flatten(0, -2).t());
    return {grad_x, grad_weight};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) {
  const bool fp32 = x.is_cpu() && x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat;
  const bool fits = x.dim() >= 2 && weight.dim() == 2 && x.size(-1) == weight.size(1);  // if not, at::linear tells
  const bool suits = fp32 && fits && x.numel() > 0 && weight.numel() > 0 && find_onednn().has_value();
  return suits ? Linear::apply(x, weight) : at::linear(x, weight);
}

}  // namespace fsdp::kernels
