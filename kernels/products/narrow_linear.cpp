#include "kernels/products/narrow_linear.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "kernels/base/dispatch.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/base/tensor_table.h"
#include "kernels/products/linear_parts.h"

namespace fsdp::kernels {
namespace {

// Whose weights they are, no more.
struct NarrowMark {};

TensorTable<NarrowMark>& narrow_weights() {
  static auto* weights = new TensorTable<NarrowMark>;  // tensors may outlive every static
  return *weights;
}

at::Tensor as_bf16(const at::Tensor& wide) { return wide.detach().to(at::kBFloat16); }

at::Tensor narrow_product(const at::Tensor& x, const at::Tensor& weight) {
  return product(as_bf16(x), as_bf16(weight)).to(at::kFloat);
}

struct NarrowLinear : torch::autograd::Function<NarrowLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    // A frozen weight needs no gradient, so nobody will ask for x.
    context->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    return narrow_product(x, weight);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor grad = as_bf16(grads[0]).contiguous();
    torch::autograd::variable_list result(2);
    if (context->needs_input_grad(0)) result[0] = product(grad, as_bf16(weight).t()).to(at::kFloat);
    if (context->needs_input_grad(1))
      result[1] = weight_gradient(weight, grad.flatten(0, -2), as_bf16(x).flatten(0, -2)).to(at::kFloat);
    return once_differentiable("narrow_linear", "torch::linear", grads, std::move(result));
  }
};

at::Tensor differentiable_narrow_linear(const at::Tensor& x, const at::Tensor& weight) {
  return NarrowLinear::apply(x, weight);
}

}  // namespace

at::Tensor narrow_linear(const at::Tensor& x, const at::Tensor& weight) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&)>("fsdp::narrow_linear");
  TORCH_CHECK(x.is_cpu() && weight.is_cpu() && x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat,
              "[narrow_linear] got x in ", x.scalar_type(), " on ", x.device(), " and a weight in ",
              weight.scalar_type(), " on ", weight.device(), ", expected both in float32 on the CPU.");
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1), "[narrow_linear] got x ", x.sizes(),
              " and a weight ", weight.sizes(), ", expected x [..., in] and a weight [out, in].");
  return x.dim() == 1 ? op.call(x.unsqueeze(0), weight).squeeze(0) : op.call(x, weight);
}

void set_narrow(const at::Tensor& weight) { narrow_weights().set(weight, {}); }

bool is_narrow(const at::Tensor& weight) { return narrow_weights().find(weight).has_value(); }

TORCH_LIBRARY_FRAGMENT(fsdp, library) { library.def("narrow_linear(Tensor x, Tensor weight) -> Tensor"); }

TORCH_LIBRARY_IMPL(fsdp, CPU, library) { library.impl("narrow_linear", narrow_product); }

TORCH_LIBRARY_IMPL(fsdp, Autograd, library) { library.impl("narrow_linear", differentiable_narrow_linear); }

}  // namespace fsdp::kernels
