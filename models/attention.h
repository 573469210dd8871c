// Causal attention with grouped heads: over plain rows, packed documents, or a cache of earlier keys.
// Shape suffixes: B rows, T tokens, H query heads, K key heads, D head dim, E hidden.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <vector>

#include "models/across_ranks.h"
#include "models/config/decoder_config.h"
#include "models/key_value_cache.h"
#include "models/linear.h"
#include "models/rms_norm.h"

namespace fsdp::models {

// What all layers of one forward share.
struct AttentionInputs {
  at::Tensor cos, sin;                    // [T, D] or [B, T, D], dtype of the activations
  std::vector<int64_t> document_lengths;  // of the B * T tokens in order; empty: each row is one document
  KeyValueCache* cache = nullptr;         // the tokens before, for generation
};

// The attention block, with Hugging Face's parameter names q_proj, k_proj, v_proj, o_proj, q_norm, k_norm.
class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options);

  // x, result [B, T, E]: attend(project(x)).
  at::Tensor forward(const at::Tensor& x_BTE, const AttentionInputs& inputs) { return attend(project(x_BTE), inputs); }
  // q [B, T, H * D], k and v [B, T, K * D].
  std::vector<at::Tensor> project(const at::Tensor& x_BTE) {
    const at::Tensor& all_BTE = across_ ? across_->enter_layer(x_BTE, name_) : x_BTE;
    return models::project(all_BTE, projections_, {q_proj_, k_proj_, v_proj_});
  }
  // Turns the projections in place.
  at::Tensor attend(const std::vector<at::Tensor>& projections, const AttentionInputs& inputs);

  void set_projections(Projections projections) { projections_ = projections; }
  bool can_fuse_projections() const { return lie_side_by_side({q_proj_, k_proj_, v_proj_}); }
  // The maps are cut over ranks: this rank has some of the heads. `name` is told in errors.
  void set_across(std::shared_ptr<AcrossRanks> across, const std::string& name);

 private:
  std::shared_ptr<AcrossRanks> across_;
  std::string name_;
  Projections projections_ = Projections::kSeparate;
  int64_t layer_, head_dim_, window_;
  bool has_rope_;
  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
  RmsNorm q_norm_{nullptr}, k_norm_{nullptr};  // null where the family has none
};
TORCH_MODULE(Attention);

}  // namespace fsdp::models
