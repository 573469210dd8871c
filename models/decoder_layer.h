// One block of the decoder: attention and a gated MLP, each behind a norm and around a residual.
// Shape suffixes: B rows, T tokens, E hidden, I intermediate.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/across_ranks.h"
#include "models/attention.h"
#include "models/config/decoder_config.h"
#include "models/linear.h"
#include "models/rms_norm.h"

namespace fsdp::models {

// down(silu(gate(x)) * up(x)).
class GatedMlpImpl : public torch::nn::Module {
 public:
  GatedMlpImpl(const DecoderConfig& config, const at::TensorOptions& options);

  at::Tensor forward(const at::Tensor& x_BTE) { return project_down(activate(project(x_BTE))); }
  // gate and up, [B, T, I].
  std::vector<at::Tensor> project(const at::Tensor& x_BTE) {
    const at::Tensor& all_BTE = across_ ? across_->enter_layer(x_BTE, name_) : x_BTE;
    return models::project(all_BTE, projections_, {gate_proj_, up_proj_});
  }
  static at::Tensor activate(const std::vector<at::Tensor>& gate_and_up);
  at::Tensor project_down(const at::Tensor& product_BTI);

  void set_projections(Projections projections) { projections_ = projections; }
  bool can_fuse_projections() const { return lie_side_by_side({gate_proj_, up_proj_}); }
  // The maps are cut over ranks: this rank has some of the I. `name` is told in errors.
  void set_across(std::shared_ptr<AcrossRanks> across, const std::string& name);

 private:
  std::shared_ptr<AcrossRanks> across_;
  std::string name_;
  Projections projections_ = Projections::kSeparate;
  Linear gate_proj_, up_proj_, down_proj_;
};
TORCH_MODULE(GatedMlp);

// What a layer does not keep for its backward, and computes again there: nothing; the norms' outputs and the product
// that the down projection reads; gate and up as well, at the price of their two matrix products.
enum class NotKept { kNothing, kElementwise, kGateUp };

// Returns use(make(inputs)), and may compute what `make` returns again for the backward of `use`. The seam for
// recomputation of part of a block.
using InputRunner = std::function<std::vector<at::Tensor>(
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& make, const std::vector<at::Tensor>& inputs,
    const std::function<std::vector<at::Tensor>(const at::Tensor&)>& use)>;

// x + attention(norm(x)), then x + mlp(norm(x)).
class DecoderLayerImpl : public torch::nn::Module {
 public:
  DecoderLayerImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options);

  at::Tensor forward(const at::Tensor& x_BTE, const AttentionInputs& inputs);

  // Of q, k and v, and of gate and up.
  void set_projections(Projections projections);
  const Attention& attention() const { return self_attn_; }
  const GatedMlp& mlp() const { return mlp_; }
  // Of both; `name` is the layer's.
  void set_across(const std::shared_ptr<AcrossRanks>& across, const std::string& name);

  // Calls what is not to be kept through `run_input`. With kNothing that is never called.
  void set_input_runner(NotKept not_kept, InputRunner run_input);

 private:
  at::Tensor run_mlp(const at::Tensor& x_BTE);

  Attention self_attn_;
  GatedMlp mlp_;
  RmsNorm input_layernorm_, post_attention_layernorm_;
  NotKept not_kept_ = NotKept::kNothing;
  InputRunner run_input_;
};
TORCH_MODULE(DecoderLayer);

}  // namespace fsdp::models
