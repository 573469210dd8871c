// One block of the decoder: attention and a gated MLP or experts, each behind a norm and around a residual.
// Shape suffixes: B rows, T tokens, E hidden, I intermediate.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/across_ranks.h"
#include "models/attention.h"
#include "models/config/decoder_config.h"
#include "models/gated_mlp.h"
#include "models/latent_attention.h"
#include "models/mixture.h"
#include "models/rms_norm.h"

namespace fsdp::models {

// What a layer does not keep for its backward, and computes again there: nothing; the norms' outputs and the product
// that the down projection reads; gate and up as well, at the price of their two matrix products.
enum class NotKept { kNothing, kElementwise, kGateUp };

// Returns use(make(inputs)), and may compute what `make` returns again for the backward of `use`. The seam for
// recomputation of part of a block.
using InputRunner = std::function<std::vector<at::Tensor>(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& make, const std::vector<at::Tensor>& inputs,
    const std::function<std::vector<at::Tensor>(const at::Tensor&)>& use)>;

// x + attention(norm(x)), then x + mlp(norm(x)), where the MLP may be experts.
class DecoderLayerImpl : public torch::nn::Module {
 public:
  DecoderLayerImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options);

  at::Tensor forward(const at::Tensor& x_BTE, const AttentionInputs& inputs);

  // Of q, k and v, and of gate and up.
  void set_projections(Projections projections);
  // Null where it is latent.
  const Attention& attention() const { return self_attn_; }
  // One of them is null.
  const GatedMlp& mlp() const { return mlp_; }
  const Mixture& mixture() const { return mixture_; }
  // Where experts say what was chosen of them; before the first forward of a layer that has some.
  void set_balance(std::shared_ptr<ExpertBalance> balance) { balance_ = std::move(balance); }
  // Of its norms.
  at::TensorOptions activation_options() const { return input_layernorm_->weight.options().requires_grad(false); }
  // Of both; `name` is the layer's.
  void set_across(const std::shared_ptr<AcrossRanks>& across, const std::string& name);

  // Calls what is not to be kept, of experts nothing, through `run_input`. With kNothing that is never called.
  void set_input_runner(NotKept not_kept, InputRunner run_input);

 private:
  at::Tensor run_mlp(const at::Tensor& x_BTE);

  std::vector<at::Tensor> project(const at::Tensor& normed_BTE);

  Attention self_attn_{nullptr};
  LatentAttention latent_attn_{nullptr};
  GatedMlp mlp_{nullptr};
  Mixture mixture_{nullptr};
  std::shared_ptr<ExpertBalance> balance_;
  RmsNorm input_layernorm_, post_attention_layernorm_;
  NotKept not_kept_ = NotKept::kNothing;
  InputRunner run_input_;
};
TORCH_MODULE(DecoderLayer);

}  // namespace fsdp::models
