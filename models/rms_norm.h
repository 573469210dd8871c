// A norm with a learned scale.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <utility>

#include "kernels/operators/rms_norm.h"

namespace fsdp::models {

// Root mean square norm over the last dimension; parameter `weight` [size].
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(int64_t size, double eps, const at::TensorOptions& options)
      : weight(register_parameter("weight", torch::empty({size}, options))), eps_(eps) {}

  at::Tensor forward(const at::Tensor& x) { return kernels::rms_norm(x, weight, eps_); }
  // {x + residual, the norm of that}.
  std::pair<at::Tensor, at::Tensor> forward_sum(const at::Tensor& x, const at::Tensor& residual) {
    return kernels::add_rms_norm(x, residual, weight, eps_);
  }

  at::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(RmsNorm);

}  // namespace fsdp::models
