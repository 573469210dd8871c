// A linear map without bias, and the low-rank adapter that may sit on it.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>

#include "kernels/linear.h"

namespace fsdp::models {

// y = W x + scale B A dropout(x), with A [rank, in] and B [out, rank]. After: Hu et al. 2021 (LoRA).
struct AdapterShape {
  int64_t rank = 0;
  double scale = 1;    // alpha / rank
  double dropout = 0;  // of the adapter's input, while the module trains
};

// y = x W^T; x [..., in], weight [out, in], y [..., out]. torch::nn::Linear without its costly start values: the
// weight is uninitialised until the model's reset_parameters() or load_weights().
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out, const at::TensorOptions& options)
      : weight(register_parameter("weight", torch::empty({out, in}, options))) {}

  at::Tensor forward(const at::Tensor& x);

  // Adds the parameters `lora_A.weight` and `lora_B.weight`, uninitialised. Once.
  void add_adapter(const AdapterShape& shape, const at::TensorOptions& options);

  at::Tensor weight;

 private:
  AdapterShape adapter_;
  std::shared_ptr<LinearImpl> lora_a_, lora_b_;  // null without an adapter
};
TORCH_MODULE(Linear);

}  // namespace fsdp::models
