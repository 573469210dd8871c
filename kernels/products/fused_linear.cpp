#include "kernels/products/fused_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "kernels/base/dispatch.h"
#include "kernels/base/once_differentiable.h"
#include "kernels/products/fp8_weights.h"
#include "kernels/products/linear.h"
#include "kernels/products/linear_parts.h"
#include "kernels/products/narrow_linear.h"
#include "kernels/products/rowwise_scope.h"

namespace fsdp::kernels {
namespace {

// Along dim 0 or the last one, whose stride the tensors share.
int64_t total_size(at::TensorList tensors, int64_t dim) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += tensor.size(dim);
  return total;
}

// The matrix whose consecutive rows the weights are.
at::Tensor joined_rows(at::TensorList weights) {
  const int64_t in = weights[0].size(1);
  return weights[0].as_strided({total_size(weights, 0), in}, {in, 1}, weights[0].storage_offset());
}

std::vector<at::Tensor> split_columns(const at::Tensor& y, at::TensorList weights) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const at::Tensor& weight : weights) {
    parts.push_back(y.narrow(-1, begin, weight.size(0)));
    begin += weight.size(0);
  }
  return parts;
}

// Gradients of the results as columns of one tensor: without a copy where they lie so, as swiglu() leaves them.
at::Tensor joined_columns(at::TensorList grads) {
  const int64_t width = total_size(grads, -1);
  const at::Tensor& first = grads[0];
  std::vector<int64_t> sizes = first.sizes().vec(), strides(sizes.size());
  sizes.back() = width;
  for (int64_t dim = first.dim() - 1, stride = 1; dim >= 0; stride *= sizes[static_cast<size_t>(dim--)]) {
    strides[static_cast<size_t>(dim)] = stride;
  }
  int64_t offset = first.storage_offset();
  for (const at::Tensor& grad : grads) {
    const bool continues =
        grad.is_alias_of(first) && grad.storage_offset() == offset && grad.strides() == at::IntArrayRef(strides);
    if (!continues) return at::cat(grads, -1);
    offset += grad.size(-1);
  }
  return first.as_strided(sizes, strides, first.storage_offset());
}

// One slot over those of all weights, which their owner placed side by side; nothing: each is to be filled by itself.
std::optional<GradientSlot> joined_slot(const std::vector<std::optional<GradientSlot>>& slots) {
  if (slots.empty() || !slots[0]) return std::nullopt;
  const GradientSlot& first = *slots[0];
  std::vector<at::Tensor> targets;
  for (const auto& slot : slots) {
    if (!slot || slot->adds != first.adds || slot->scale != first.scale) return std::nullopt;
    targets.push_back(slot->target);
  }
  if (!lie_side_by_side(targets)) return std::nullopt;
  return GradientSlot{joined_rows(targets), first.adds, first.scale, {}};
}

std::vector<at::Tensor> weight_gradients(at::TensorList weights, const at::Tensor& grad_TN, const at::Tensor& x_TK) {
  std::vector<std::optional<GradientSlot>> slots;
  for (const at::Tensor& weight : weights) slots.push_back(find_gradient_slot(weight));
  const auto joined = joined_slot(slots);
  if (joined) fill_weight_gradient(*joined, grad_TN, x_TK);
  std::vector<at::Tensor> grads;
  int64_t begin = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t rows = weights[i].size(0);
    const at::Tensor part_TN = grad_TN.narrow(1, begin, rows);
    begin += rows;
    if (!slots[i]) {
      grads.push_back(product(part_TN.t(), x_TK.t()));
      continue;
    }
    if (!joined) fill_weight_gradient(*slots[i], part_TN.contiguous(), x_TK);
    grads.push_back(std::move(slots[i]->stand_in));
  }
  return grads;
}

}  // namespace

std::vector<at::Tensor> fused_product(const at::Tensor& x, at::TensorList weights) {
  return split_columns(product(x, joined_rows(weights)), weights);
}

namespace {

struct FusedLinear : torch::autograd::Function<FusedLinear> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                at::TensorList weights) {
    torch::autograd::variable_list saved = weights.vec();
    saved.push_back(weights[0].requires_grad() ? x : at::Tensor());  // frozen weights need no gradient
    context->save_for_backward(std::move(saved));
    const at::AutoDispatchBelowADInplaceOrView below;  // observers have seen this operator's inputs
    return fused_product(x, weights);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    auto weights = context->get_saved_variables();
    const at::Tensor x = std::move(weights.back());
    weights.pop_back();
    const at::Tensor grad = joined_columns(grads);
    torch::autograd::variable_list result(1 + weights.size());
    if (context->needs_input_grad(0)) result[0] = product(grad, joined_rows(weights).t());
    if (context->needs_input_grad(1)) {
      auto of_weights = weight_gradients(weights, grad.flatten(0, -2), x.flatten(0, -2));
      std::move(of_weights.begin(), of_weights.end(), result.begin() + 1);
    }
    return once_differentiable("fused_linear", "torch::linear", grads, std::move(result));
  }
};

std::vector<at::Tensor> differentiable_fused_linear(const at::Tensor& x, at::TensorList weights) {
  return FusedLinear::apply(x, weights);
}

bool can_be_fused(const at::Tensor& x, at::TensorList weights) {
  const auto type = x.scalar_type();
  if (x.dim() < 2 || x.numel() == 0 || (type != at::kFloat && type != at::kBFloat16)) return false;
  const bool in_rows = RowwiseScope::is(Rowwise::kFewRows) || RowwiseScope::is(Rowwise::kManyRows);
  if (!at::GradMode::is_enabled() && in_rows) return false;
  if (!lie_side_by_side(weights) || weights[0].size(1) != x.size(-1)) return false;
  return std::all_of(weights.begin(), weights.end(), [&](const at::Tensor& weight) {
    return !fp8_recipe_of(weight) && !is_narrow(weight) && weight.scalar_type() == type &&
           weight.device() == x.device() && weight.requires_grad() == weights[0].requires_grad();
  });
}

}  // namespace

bool lie_side_by_side(at::TensorList weights) {
  if (weights.empty()) return false;
  int64_t offset = weights[0].storage_offset();
  for (const at::Tensor& weight : weights) {
    const bool continues = weight.dim() == 2 && weight.is_contiguous() && weight.size(1) == weights[0].size(1) &&
                           weight.scalar_type() == weights[0].scalar_type() && weight.is_alias_of(weights[0]) &&
                           weight.storage_offset() == offset;
    if (!continues) return false;
    offset += weight.numel();
  }
  return true;
}

std::vector<at::Tensor> fused_linear(const at::Tensor& x, at::TensorList weights) {
  static const auto op =
      find_operator<std::vector<at::Tensor>(const at::Tensor&, at::TensorList)>("fsdp::fused_linear");
  if (has_kernel(op, x) && can_be_fused(x, weights)) return op.call(x, weights);
  std::vector<at::Tensor> results;
  for (const at::Tensor& weight : weights) results.push_back(kernels::linear(x, weight));
  return results;
}

TORCH_LIBRARY_FRAGMENT(fsdp, library) { library.def("fused_linear(Tensor x, Tensor[] weights) -> Tensor[]"); }

TORCH_LIBRARY_IMPL(fsdp, CPU, library) { library.impl("fused_linear", fused_product); }

TORCH_LIBRARY_IMPL(fsdp, Autograd, library) { library.impl("fused_linear", differentiable_fused_linear); }

}  // namespace fsdp::kernels
