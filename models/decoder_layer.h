// One block of the decoder: attention and a gated MLP, each behind a norm and around a residual.
// Shape suffixes: B rows, T tokens, E hidden.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "models/attention.h"
#include "models/decoder_config.h"
#include "models/linear.h"
#include "models/rms_norm.h"

namespace fsdp::models {

// down(silu(gate(x)) * up(x)).
class GatedMlpImpl : public torch::nn::Module {
 public:
  GatedMlpImpl(const DecoderConfig& config, const at::TensorOptions& options);

  at::Tensor forward(const at::Tensor& x_BTE);

 private:
  Linear gate_proj_, up_proj_, down_proj_;
};
TORCH_MODULE(GatedMlp);

// x + attention(norm(x)), then x + mlp(norm(x)).
class DecoderLayerImpl : public torch::nn::Module {
 public:
  DecoderLayerImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options);

  at::Tensor forward(const at::Tensor& x_BTE, const AttentionInputs& inputs);

 private:
  Attention self_attn_;
  GatedMlp mlp_;
  RmsNorm input_layernorm_, post_attention_layernorm_;
};
TORCH_MODULE(DecoderLayer);

}  // namespace fsdp::models
