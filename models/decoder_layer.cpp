#include "models/decoder_layer.h"

#include <torch/torch.h>

#include "kernels/swiglu.h"

namespace fsdp::models {

GatedMlpImpl::GatedMlpImpl(const DecoderConfig& config, const at::TensorOptions& options)
    : gate_proj_(config.hidden_size, config.intermediate_size, options),
      up_proj_(config.hidden_size, config.intermediate_size, options),
      down_proj_(config.intermediate_size, config.hidden_size, options) {
  register_module("gate_proj", gate_proj_);
  register_module("up_proj", up_proj_);
  register_module("down_proj", down_proj_);
}

at::Tensor GatedMlpImpl::forward(const at::Tensor& x_BTE) {
  return down_proj_(kernels::swiglu(gate_proj_(x_BTE), up_proj_(x_BTE)));
}

DecoderLayerImpl::DecoderLayerImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options)
    : self_attn_(config, layer, options),
      mlp_(config, options),
      input_layernorm_(config.hidden_size, config.rms_norm_eps, options),
      post_attention_layernorm_(config.hidden_size, config.rms_norm_eps, options) {
  register_module("self_attn", self_attn_);
  register_module("mlp", mlp_);
  register_module("input_layernorm", input_layernorm_);
  register_module("post_attention_layernorm", post_attention_layernorm_);
}

at::Tensor DecoderLayerImpl::forward(const at::Tensor& x_BTE, const AttentionInputs& inputs) {
  const at::Tensor h_BTE = x_BTE + self_attn_(input_layernorm_(x_BTE), inputs);
  return h_BTE + mlp_(post_attention_layernorm_(h_BTE));
}

}  // namespace fsdp::models
