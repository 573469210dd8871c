// A linear map without bias.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "kernels/linear.h"

namespace fsdp::models {

// y = x W^T; x [..., in], weight [out, in], y [..., out]. torch::nn::Linear without its costly start values: the
// weight is uninitialised until the model's reset_parameters() or load_weights().
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out, const at::TensorOptions& options)
      : weight(register_parameter("weight", torch::empty({out, in}, options))) {}

  at::Tensor forward(const at::Tensor& x) { return kernels::linear(x, weight); }

  at::Tensor weight;
};
TORCH_MODULE(Linear);

}  // namespace fsdp::models
