// A linear map, with or without bias, and the low-rank adapter that may sit on it.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

namespace fsdp::models {

// y = W x + scale B A dropout(x), with A [rank, in] and B [out, rank]. After: Hu et al. 2021 (LoRA).
struct AdapterShape {
  int64_t rank = 0;
  double scale = 1;    // alpha / rank
  double dropout = 0;  // of the adapter's input, while the module trains
};

enum class Bias { kNo, kYes };

// How several linear maps of one input are computed: a product each; one product over their weights, which lie side by
// side once fully_shard() has placed them (biases between them keep them apart; then it is a product each).
enum class Projections { kSeparate, kFused };

// y = x W^T, plus the bias where there is one; x [..., in], weight [out, in], bias [out], y [..., out].
// torch::nn::Linear without its costly start values: parameters are uninitialised until the model's reset_parameters()
// or load_weights().
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out, const at::TensorOptions& options, Bias has_bias = Bias::kNo)
      : weight(register_parameter("weight", torch::empty({out, in}, options))) {
    if (has_bias == Bias::kYes) bias = register_parameter("bias", torch::empty({out}, options));
  }

  at::Tensor forward(const at::Tensor& x);
  // y, made of W x in place: with the bias and what the adapter adds.
  at::Tensor complete(at::Tensor product, const at::Tensor& x);

  // Adds the parameters `lora_A.weight` and `lora_B.weight`, uninitialised. Once.
  void add_adapter(const AdapterShape& shape, const at::TensorOptions& options);

  at::Tensor weight;
  at::Tensor bias;  // undefined where there is none

 private:
  AdapterShape adapter_;
  std::shared_ptr<LinearImpl> lora_a_, lora_b_;  // null without an adapter
};
TORCH_MODULE(Linear);

// The maps of one input, in the order in which they were registered.
std::vector<at::Tensor> project(const at::Tensor& x, Projections how, std::initializer_list<Linear> maps);

// Whether the weights lie in memory as Projections::kFused needs them.
bool lie_side_by_side(std::initializer_list<Linear> maps);

}  // namespace fsdp::models
