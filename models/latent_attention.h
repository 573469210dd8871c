// Attention whose keys and values are made of a short vector a token (multi-head latent attention).
// Shape suffixes: B rows, T tokens, H heads, D head dim, E hidden.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <vector>

#include "models/across_ranks.h"
#include "models/attention.h"
#include "models/config/decoder_config.h"
#include "models/linear.h"
#include "models/rms_norm.h"

namespace fsdp::models {

// The attention block of DeepSeek-V2, with Hugging Face's parameter names q_proj or q_a_proj, q_a_layernorm and
// q_b_proj, kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj, o_proj. Of a head's D numbers the last `rope_dim` turn with
// the position, and all heads have those of the key in common. A cache keeps keys and values of all heads, values as
// wide as keys. After: DeepSeek-AI 2024 (DeepSeek-V2).
class LatentAttentionImpl : public torch::nn::Module {
 public:
  LatentAttentionImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options);

  // x [B, T, E] -> queries [B, T, H * D], and what keys and values are made of.
  std::vector<at::Tensor> project(const at::Tensor& x_BTE);
  // [B, T, E].
  at::Tensor attend(const std::vector<at::Tensor>& projections, const AttentionInputs& inputs);

  // The maps to and from heads are cut over ranks, so that this rank has some of the heads, and sequences may be;
  // `name` is told in errors.
  void set_across(std::shared_ptr<AcrossRanks> across, const std::string& name);

 private:
  std::shared_ptr<AcrossRanks> across_;
  std::string name_;
  int64_t layer_, head_dim_;
  LatentConfig shape_;
  Linear q_proj_{nullptr}, q_a_proj_{nullptr}, q_b_proj_{nullptr};  // the first, or the other two
  RmsNorm q_a_layernorm_{nullptr};
  Linear kv_a_proj_with_mqa_{nullptr}, kv_b_proj_{nullptr}, o_proj_{nullptr};
  RmsNorm kv_a_layernorm_{nullptr};
};
TORCH_MODULE(LatentAttention);

}  // namespace fsdp::models
