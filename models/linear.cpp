#include "models/linear.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "kernels/products/fused_linear.h"
#include "kernels/products/linear.h"
#include "kernels/products/nf4_linear.h"

namespace fsdp::models {
namespace {

std::vector<at::Tensor> weights_of(std::initializer_list<Linear> maps) {
  std::vector<at::Tensor> weights;
  for (const Linear& map : maps) weights.push_back(map->weight);
  return weights;
}

}  // namespace

at::Tensor LinearImpl::product(const at::Tensor& x) {
  return is_nf4() ? kernels::nf4_linear(x, codes_, out_) : kernels::linear(x, weight);
}

at::Tensor LinearImpl::forward(const at::Tensor& x) { return complete(product(x), x); }

at::Tensor LinearImpl::complete(at::Tensor y, const at::Tensor& x) {
  if (bias.defined()) y.add_(bias);
  return add_adapted(std::move(y), x);
}

at::Tensor LinearImpl::without_bias(const at::Tensor& x) { return add_adapted(product(x), x); }

at::Tensor LinearImpl::add_adapted(at::Tensor y, const at::Tensor& x) {
  if (!lora_a_) return y;
  const at::Tensor input = adapter_.dropout > 0 && is_training() ? at::dropout(x, adapter_.dropout, /*train=*/true) : x;
  return y.add_(lora_b_->forward(lora_a_->forward(input)), adapter_.scale);
}

std::vector<at::Tensor> project(const at::Tensor& x, Projections how, std::initializer_list<Linear> maps) {
  std::vector<at::Tensor> results;
  const bool any_nf4 = std::any_of(maps.begin(), maps.end(), [](const Linear& map) { return map->is_nf4(); });
  if (how == Projections::kSeparate || any_nf4) {
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

bool lie_side_by_side(std::initializer_list<Linear> maps) {
  const bool any_nf4 = std::any_of(maps.begin(), maps.end(), [](const Linear& map) { return map->is_nf4(); });
  return !any_nf4 && kernels::lie_side_by_side(weights_of(maps));
}

void LinearImpl::keep_as_nf4() {
  TORCH_CHECK(!is_nf4(), "[nf4] this linear map keeps its weight as NF4 already");
  parameters_.erase("weight");
  weight = at::Tensor();
  const at::Tensor bytes = torch::zeros({kernels::nf4_bytes(out_ * in_)}, at::TensorOptions().dtype(at::kByte));
  codes_ = register_parameter("weight_nf4", bytes, /*requires_grad=*/false);
}

void LinearImpl::add_adapter(const AdapterShape& shape, const at::TensorOptions& options) {
  TORCH_CHECK(!lora_a_, "[lora] this linear map has an adapter already");
  adapter_ = shape;
  lora_a_ = register_module("lora_A", std::make_shared<LinearImpl>(in_, shape.rank, options));
  lora_b_ = register_module("lora_B", std::make_shared<LinearImpl>(shape.rank, out_, options));
}

}  // namespace fsdp::models
