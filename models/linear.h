// A linear map, with or without bias.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "kernels/linear.h"

namespace fsdp::models {

enum class Bias { kNo, kYes };

// y = x W^T, plus the bias where there is one; x [..., in], weight [out, in], bias [out], y [..., out].
// torch::nn::Linear without its costly start values: parameters are uninitialised until the model's reset_parameters()
// or load_weights().
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out, const at::TensorOptions& options, Bias has_bias = Bias::kNo)
      : weight(register_parameter("weight", torch::empty({out, in}, options))) {
    if (has_bias == Bias::kYes) bias = register_parameter("bias", torch::empty({out}, options));
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = kernels::linear(x, weight);
    return bias.defined() ? y.add_(bias) : y;
  }

  at::Tensor weight;
  at::Tensor bias;  // undefined where there is none
};
TORCH_MODULE(Linear);

}  // namespace fsdp::models
