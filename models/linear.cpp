#include "models/linear.h"

#include <torch/torch.h>

namespace fsdp::models {

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  at::Tensor y = kernels::linear(x, weight);
  if (bias.defined()) y.add_(bias);
  if (!lora_a_) return y;
  const at::Tensor input = adapter_.dropout > 0 && is_training() ? at::dropout(x, adapter_.dropout, /*train=*/true) : x;
  return y.add_(lora_b_->forward(lora_a_->forward(input)), adapter_.scale);
}

void LinearImpl::add_adapter(const AdapterShape& shape, const at::TensorOptions& options) {
  TORCH_CHECK(!lora_a_, "[lora] this linear map has an adapter already");
  adapter_ = shape;
  lora_a_ = register_module("lora_A", std::make_shared<LinearImpl>(weight.size(1), shape.rank, options));
  lora_b_ = register_module("lora_B", std::make_shared<LinearImpl>(shape.rank, weight.size(0), options));
}

}  // namespace fsdp::models
