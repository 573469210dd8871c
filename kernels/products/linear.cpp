#include "kernels/products/linear.h"

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/dispatch.h"
#include "kernels/base/half.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/flat/pack.h"
#include "kernels/products/dense_product.h"
#include "kernels/products/few_rows.h"
#include "kernels/products/fp8_linear.h"
#include "kernels/products/fp8_weights.h"
#include "kernels/products/linear_parts.h"
#include "kernels/products/many_rows.h"
#include "kernels/products/narrow_linear.h"
#include "kernels/products/rowwise_scope.h"
#include "kernels/raw/cpu_isa.h"

namespace fsdp::kernels {
namespace {

// Up to so many rows of x a weight's gradient is bound by writing it, which our tiles do where it goes. Units for
// products of bf16 matrices, where there are some, gain more than that much earlier.
constexpr int64_t kFewTokens = 128;
constexpr int64_t kFewTokensBf16 = 32;
// A piece of a gradient on its way into a slot stays in the second-level cache.
constexpr int64_t kPieceNumel = int64_t{1} << 17;
// A piece of a weight in bf16 that is widened for a product of fp32: 4 MiB, so that what widening costs and what it
// takes are both small.
constexpr int64_t kWidePieceNumel = int64_t{1} << 20;

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

// Its products for SSE4 take 2.5 times as long as MKL's, and it has none without vectors.
bool has_fast_onednn() { return raw::cpu_isa() > raw::CpuIsa::kSse4; }

int64_t few_tokens(at::ScalarType type) {
  return type == at::kBFloat16 && multiplies_bf16() ? kFewTokensBf16 : kFewTokens;
}

at::Tensor product_fp32(const at::Tensor& a, const at::Tensor& b) {
  const auto& onednn = find_onednn();
  if (prefers_mkl() || !onednn || !has_fast_onednn()) return at::linear(a, b);
  return onednn->call(a, b, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

// With fp32 products, in pieces of the weight b; the result has `type`.
at::Tensor widened_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  std::vector<int64_t> shape = a.sizes().vec();
  shape.back() = b.size(0);
  const at::Tensor wide = a.to(at::kFloat);
  at::Tensor y = at::empty(shape, a.options().dtype(type).requires_grad(false));
  const int64_t rows = std::max<int64_t>(64, kWidePieceNumel / std::max<int64_t>(1, b.size(1)));
  for (int64_t row = 0; row < b.size(0); row += rows) {
    const int64_t count = std::min(rows, b.size(0) - row);
    y.narrow(-1, row, count).copy_(product_fp32(wide, b.narrow(0, row, count).to(at::kFloat)));
  }
  return y;
}

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_cpu()) return at::linear(a, b);
  const int64_t rows = a.numel() / std::max<int64_t>(1, a.size(-1));
  if (prefers_dense_product(rows, a.size(-1), a.scalar_type()) && fits_dense_product(a) && fits_dense_product(b))
    return dense_product(a, b);
  if (a.scalar_type() == at::kFloat) return product_fp32(a, b);
  const at::ScalarType type = a.scalar_type();
  const bool widens = type == at::kHalf || (type == at::kBFloat16 && !multiplies_bf16());
  return widens ? widened_product(a, b, type) : at::linear(a, b);
}

void fill_weight_gradient(const GradientSlot& slot, const at::Tensor& grad_TN, const at::Tensor& x_TK) {
  static const auto on_device =
      find_operator<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, bool)>(
          "fsdp::fill_weight_gradient");
  if (!grad_TN.is_cpu()) return on_device.call(slot.target, grad_TN, x_TK, slot.scale, slot.adds);
  const int64_t outputs = grad_TN.size(1), inputs = x_TK.size(1);
  if (is_half_on_cpu(grad_TN)) return fill_weight_gradient(slot, widened(grad_TN), widened(x_TK));
  const at::ScalarType type = grad_TN.scalar_type();
  if (type == at::kFloat && x_TK.scalar_type() == type && prefers_mkl()) {
    const at::NoGradGuard no_grad;
    at::Tensor target = slot.target.view({outputs, inputs});
    at::addmm_out(target, target, grad_TN.t(), x_TK, slot.adds ? 1 : 0, slot.scale);
    return;
  }
  const bool prefers_dense = prefers_dense_gradient(grad_TN.size(0), type) || grad_TN.size(0) <= few_tokens(type) ||
                             prefers_tiled_gradient(grad_TN, x_TK);
  if (prefers_dense && x_TK.scalar_type() == type && fits_dense_product(grad_TN) && fits_dense_product(x_TK))
    return dense_gradient(grad_TN, x_TK, slot.scale, slot.target.mutable_data_ptr<float>(), slot.adds);
  if (type == at::kBFloat16 && !multiplies_bf16())  // once, not for each piece
    return fill_weight_gradient(slot, grad_TN.to(at::kFloat), x_TK.to(at::kFloat));
  const at::Tensor x_KT = x_TK.t(), target = slot.target.view({-1});
  const int64_t rows = std::max<int64_t>(1, kPieceNumel / inputs);
  for (int64_t row = 0; row < outputs; row += rows) {
    const int64_t count = std::min(rows, outputs - row);
    const at::Tensor piece = product(grad_TN.narrow(1, row, count).t(), x_KT);
    pack_gradient(target.narrow(0, row * inputs, count * inputs), piece, slot.scale, slot.adds);
  }
}

at::Tensor weight_gradient(const at::Tensor& weight_NK, const at::Tensor& grad_TN, const at::Tensor& x_TK) {
  std::optional<GradientSlot> slot = find_gradient_slot(weight_NK);
  if (!slot && weight_NK.is_cpu() && weight_NK.scalar_type() == at::kFloat &&
      prefers_dense_gradient(grad_TN.size(0), at::kFloat)) {
    at::Tensor gradient = at::empty(weight_NK.sizes(), weight_NK.options().requires_grad(false));
    fill_weight_gradient({gradient, false, 1, {}}, grad_TN, x_TK);
    return gradient;
  }
  if (!slot) return product(grad_TN.t(), x_TK.t());
  fill_weight_gradient(*slot, grad_TN, x_TK);
  return std::move(slot->stand_in);
}

namespace {

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    // A frozen weight needs no gradient, so nobody will ask for x.
    context->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    return product(x, weight);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor grad = grads[0].contiguous();
    torch::autograd::variable_list result(2);
    if (context->needs_input_grad(0)) result[0] = product(grad, weight.t());
    if (context->needs_input_grad(1)) result[1] = weight_gradient(weight, grad.flatten(0, -2), x.flatten(0, -2));
    return once_differentiable("linear", "torch::linear", grads, std::move(result));
  }
};

at::Tensor differentiable_linear(const at::Tensor& x, const at::Tensor& weight) { return Linear::apply(x, weight); }

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) {
  if (const auto recipe = fp8_recipe_of(weight)) return fp8_linear(x, weight, *recipe);
  if (is_narrow(weight)) return narrow_linear(x, weight);
  static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&)>("fsdp::linear");
  static const auto few_rows = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&)>("fsdp::few_rows_linear");
  static const auto many_rows =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&)>("fsdp::many_rows_linear");
  if (!at::GradMode::is_enabled()) {
    if (RowwiseScope::is(Rowwise::kFewRows) && fits_few_rows(x, weight)) return few_rows.call(x, weight);
    if (RowwiseScope::is(Rowwise::kManyRows) && fits_many_rows(x, weight)) return many_rows.call(x, weight);
    if (x.scalar_type() == at::kFloat && weight.scalar_type() == at::kBFloat16)
      return x.is_cpu() ? widened_product(x, weight, at::kFloat) : at::linear(x, weight.to(at::kFloat));
  }
  const auto dtype = weight.scalar_type();
  const bool is_ours = dtype == at::kFloat || dtype == at::kBFloat16 || (dtype == at::kHalf && x.is_cpu());
  const bool known = has_kernel(op, x) && x.scalar_type() == dtype && is_ours;
  const bool fits = x.dim() >= 2 && weight.dim() == 2 && x.size(-1) == weight.size(1);  // if not, at::linear tells
  return known && fits && x.numel() > 0 && weight.numel() > 0 ? op.call(x, weight) : at::linear(x, weight);
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) {
  library.def("linear(Tensor x, Tensor weight) -> Tensor");
  library.def("few_rows_linear(Tensor x, Tensor weight) -> Tensor");
  library.def("many_rows_linear(Tensor x, Tensor weight) -> Tensor");
  // On devices other than the CPU.
  library.def("fill_weight_gradient(Tensor(a!) target, Tensor grad, Tensor x, float scale, bool adds) -> ()");
}

TORCH_LIBRARY_IMPL(fsdp, CPU, library) {
  library.impl("linear", product);
  library.impl("few_rows_linear", few_rows_product);
  library.impl("many_rows_linear", many_rows_product);
}

TORCH_LIBRARY_IMPL(fsdp, Autograd, library) {
  library.impl("linear", differentiable_linear);
  library.impl("few_rows_linear", torch::CppFunction::makeFallthrough());  // these have no gradient
  library.impl("many_rows_linear", torch::CppFunction::makeFallthrough());
}

}  // namespace fsdp::kernels
