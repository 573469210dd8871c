#include "models/linear.h"

#include <ATen/ATen.h>

#include "kernels/products/fused_linear.h"
#include "kernels/products/linear.h"

namespace fsdp::models {
namespace {

std::vector<at::Tensor> weights_of(std::initializer_list<Linear> maps) {
  std::vector<at::Tensor> weights;
  for (const Linear& map : maps) weights.push_back(map->weight);
  return weights;
}

}  // namespace

at::Tensor LinearImpl::forward(const at::Tensor& x) { return complete(kernels::linear(x, weight), x); }

at::Tensor LinearImpl::complete(at::Tensor y, const at::Tensor& x) {
  if (bias.defined()) y.add_(bias);
  if (!lora_a_) return y;
  const at::Tensor input = adapter_.dropout > 0 && is_training() ? at::dropout(x, adapter_.dropout, /*train=*/true) : x;
  return y.add_(lora_b_->forward(lora_a_->forward(input)), adapter_.scale);
}

std::vector<at::Tensor> project(const at::Tensor& x, Projections how, std::initializer_list<Linear> maps) {
  std::vector<at::Tensor> results;
  if (how == Projections::kSeparate) {
    for (Linear map : maps) results.push_back(map(x));
    return results;
  }
  results = kernels::fused_linear(x, weights_of(maps));
  auto result = results.begin();
  for (Linear map : maps) {
    *result = map->complete(std::move(*result), x);
    ++result;
  }
  return results;
}

bool lie_side_by_side(std::initializer_list<Linear> maps) { return kernels::lie_side_by_side(weights_of(maps)); }

void LinearImpl::add_adapter(const AdapterShape& shape, const at::TensorOptions& options) {
  TORCH_CHECK(!lora_a_, "[lora] this linear map has an adapter already");
  adapter_ = shape;
  lora_a_ = register_module("lora_A", std::make_shared<LinearImpl>(weight.size(1), shape.rank, options));
  lora_b_ = register_module("lora_B", std::make_shared<LinearImpl>(shape.rank, weight.size(0), options));
}

}  // namespace fsdp::models
