// A linear map, with or without bias, the low-rank adapter that may sit on it, and the 4-bit codes its weight may rest
// as.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "models/adapters/served_adapters.h"

namespace fsdp::models {

// What an adapter makes of W + scale B A.
enum class AdapterKind {
  kLora,  // nothing more. After: Hu et al. 2021
  kDora,  // each row gets a length that is learned: that of W's row plus an offset. After: Liu et al. 2024 (DoRA)
};

// y = W x + scale B A dropout(x), with A [rank, in] and B [out, rank]. With kDora it is (1 + g) times that, g [out] =
// (|W| + offset) / |W + scale B A| - 1 with norms of rows that count as constants in the backward; of W x, too, the
// part that g brings sees dropout(x), as in peft.
struct AdapterShape {
  int64_t rank = 0;
  double scale = 1;    // alpha / rank
  double dropout = 0;  // of the adapter's input, while the module trains
  AdapterKind kind = AdapterKind::kLora;
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
      : weight(register_parameter("weight", torch::empty({out, in}, options))), in_(in), out_(out) {
    if (has_bias == Bias::kYes) bias = register_parameter("bias", torch::empty({out}, options));
  }

  at::Tensor forward(const at::Tensor& x);
  // y, made of W x in place: with the bias and what the adapter adds.
  at::Tensor complete(at::Tensor product, const at::Tensor& x);
  // What forward() gives without the bias: of a part of the inputs a term of a sum, to which the bias is added once.
  at::Tensor without_bias(const at::Tensor& x);

  // Adds the parameters `lora_A.weight` and `lora_B.weight`, and with kDora `lora_magnitude_offset` [out], all
  // uninitialised. Once.
  void add_adapter(const AdapterShape& shape, const at::TensorOptions& options);

  // The weight gives way to the parameter `weight_nf4`, the bytes of its codes (kernels/products/nf4/nf4_linear.h),
  // uint8 and without gradient, 0 until they are loaded. Products decode it. Once, before fully_shard(); may be
  // deferred.
  void keep_as_nf4();
  bool is_nf4() const { return codes_.defined(); }

  // W as it is at hand, decoded to `type` where it is codes.
  at::Tensor whole_weight(at::ScalarType type = at::kFloat) const;
  // The bytes of the codes; undefined without keep_as_nf4().
  const at::Tensor& codes() const { return codes_; }

  // Adapters that are beside the map rather than in its parameters; for forwards without gradients.
  void serve(std::shared_ptr<const ServedMap> adapters) { served_ = std::move(adapters); }

  bool has_magnitude() const { return offset_.defined(); }
  // |W| of each row, fp32 [out], without gradients; of the weight as it is at hand, decoded where it is codes.
  at::Tensor row_norms();

  // As constructed; of a weight that was cut since, the whole one's.
  int64_t in_features() const { return in_; }
  int64_t out_features() const { return out_; }

  at::Tensor weight;  // undefined with keep_as_nf4()
  at::Tensor bias;    // undefined where there is none

 private:
  at::Tensor product(const at::Tensor& x);
  at::Tensor add_adapted(at::Tensor y, const at::Tensor& x);
  at::Tensor add_with_magnitude(const at::Tensor& y, const at::Tensor& x, const at::Tensor& input);
  at::Tensor magnitude_gain(at::ScalarType type);

  int64_t in_, out_;
  at::Tensor codes_;  // undefined without keep_as_nf4()
  AdapterShape adapter_;
  std::shared_ptr<LinearImpl> lora_a_, lora_b_;  // null without an adapter
  at::Tensor offset_;                            // of kDora; else undefined
  std::shared_ptr<const ServedMap> served_;      // null: none
};
TORCH_MODULE(Linear);

// The maps of one input, in the order in which they were registered. Those kept as NF4 are a product each.
std::vector<at::Tensor> project(const at::Tensor& x, Projections how, std::initializer_list<Linear> maps);

// Whether the weights lie in memory as Projections::kFused needs them.
bool lie_side_by_side(std::initializer_list<Linear> maps);

}  // namespace fsdp::models
