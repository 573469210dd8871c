#include "models/attention.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/operators/causal_attention.h"
#include "kernels/operators/rope.h"

namespace fsdp::models {

AttentionImpl::AttentionImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options)
    : layer_(layer), head_dim_(config.head_dim), window_(config.window(layer)), has_rope_(config.has_rope(layer)) {
  const int64_t hidden = config.hidden_size, query = config.num_attention_heads * config.head_dim,
                key = config.num_key_value_heads * config.head_dim;
  const Bias inputs = config.attention_bias == AttentionBias::kNone ? Bias::kNo : Bias::kYes;
  const Bias output = config.attention_bias == AttentionBias::kInputsAndOutput ? Bias::kYes : Bias::kNo;
  q_proj_ = register_module("q_proj", Linear(hidden, query, options, inputs));
  k_proj_ = register_module("k_proj", Linear(hidden, key, options, inputs));
  v_proj_ = register_module("v_proj", Linear(hidden, key, options, inputs));
  o_proj_ = register_module("o_proj", Linear(query, hidden, options, output));
  if (!config.has_qk_norm) return;
  q_norm_ = register_module("q_norm", RmsNorm(config.head_dim, config.rms_norm_eps, options));
  k_norm_ = register_module("k_norm", RmsNorm(config.head_dim, config.rms_norm_eps, options));
}

at::Tensor AttentionImpl::attend(const std::vector<at::Tensor>& projections, const AttentionInputs& inputs) {
  at::Tensor q = projections[0], k = projections[1];
  if (!q_norm_.is_empty()) {
    q = q_norm_(kernels::split_heads(q, head_dim_));
    k = k_norm_(kernels::split_heads(k, head_dim_));
  }
  // In place: columns of a fused product keep all of it alive until the backward.
  if (has_rope_) kernels::apply_rope_(q, k, inputs.cos, inputs.sin);

  const at::Tensor q_BTHD = kernels::split_heads(q, head_dim_), k_BTKD = kernels::split_heads(k, head_dim_),
                   v_BTKD = kernels::split_heads(projections[2], head_dim_);
  const at::Tensor y_BTHD = inputs.cache != nullptr ? inputs.cache->attend(layer_, q_BTHD, k_BTKD, v_BTKD, window_)
                            : across_
                                ? across_->attend(q_BTHD, k_BTKD, v_BTKD, inputs.document_lengths, window_, name_)
                                : kernels::causal_attention(q_BTHD, k_BTKD, v_BTKD, inputs.document_lengths, window_);
  const at::Tensor y = y_BTHD.flatten(2);
  return across_ ? across_->leave_layer(o_proj_->without_bias(y), o_proj_->bias, name_) : o_proj_(y);
}

void AttentionImpl::set_across(std::shared_ptr<AcrossRanks> across, const std::string& name) {
  across_ = std::move(across);
  name_ = name;
}

}  // namespace fsdp::models
