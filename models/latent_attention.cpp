#include "models/latent_attention.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/operators/causal_attention.h"
#include "kernels/operators/rope.h"

namespace fsdp::models {
namespace {

constexpr double kNormEps = 1e-6;  // of the norms inside, whatever config.json says of the others

// DeepSeek's pairs of a rotation are neighbours, ours halves. Queries and keys are put into the other order alike, so
// their products are the same.
at::Tensor pairs_to_halves(const at::Tensor& x_BTHR) {
  return x_BTHR.unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2).contiguous();
}

}  // namespace

LatentAttentionImpl::LatentAttentionImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options)
    : layer_(layer), head_dim_(config.head_dim), shape_(config.latent) {
  const int64_t hidden = config.hidden_size, heads = config.num_attention_heads, query = heads * head_dim_;
  if (shape_.query_rank == 0) {
    q_proj_ = register_module("q_proj", Linear(hidden, query, options));
  } else {
    q_a_proj_ = register_module("q_a_proj", Linear(hidden, shape_.query_rank, options));
    q_a_layernorm_ = register_module("q_a_layernorm", RmsNorm(shape_.query_rank, kNormEps, options));
    q_b_proj_ = register_module("q_b_proj", Linear(shape_.query_rank, query, options));
  }
  kv_a_proj_with_mqa_ = register_module("kv_a_proj_with_mqa", Linear(hidden, shape_.rank + shape_.rope_dim, options));
  kv_a_layernorm_ = register_module("kv_a_layernorm", RmsNorm(shape_.rank, kNormEps, options));
  kv_b_proj_ = register_module("kv_b_proj",
                               Linear(shape_.rank, heads * (head_dim_ - shape_.rope_dim + shape_.value_dim), options));
  o_proj_ = register_module("o_proj", Linear(heads * shape_.value_dim, hidden, options));
}

std::vector<at::Tensor> LatentAttentionImpl::project(const at::Tensor& x_BTE) {
  const at::Tensor& all_BTE = across_ ? across_->enter_layer(x_BTE, name_) : x_BTE;
  const at::Tensor q = q_proj_.is_empty() ? q_b_proj_(q_a_layernorm_(q_a_proj_(all_BTE))) : q_proj_(all_BTE);
  return {q, kv_a_proj_with_mqa_(all_BTE)};
}

at::Tensor LatentAttentionImpl::attend(const std::vector<at::Tensor>& projections, const AttentionInputs& inputs) {
  const int64_t rope = shape_.rope_dim, still = head_dim_ - rope;
  const at::Tensor q_BTHD = kernels::split_heads(projections[0], head_dim_);
  const std::vector<at::Tensor> compressed = projections[1].split_with_sizes({shape_.rank, rope}, -1);
  const at::Tensor kv_BTHX =
      kernels::split_heads(kv_b_proj_(kv_a_layernorm_(compressed[0].contiguous())), still + shape_.value_dim);
  const auto [q_turned, k_turned] =
      kernels::apply_rope(pairs_to_halves(q_BTHD.narrow(-1, still, rope)), pairs_to_halves(compressed[1].unsqueeze(2)),
                          inputs.cos, inputs.sin);
  const at::Tensor q = at::cat({q_BTHD.narrow(-1, 0, still), q_turned}, -1);
  const int64_t heads = q.size(2);
  const at::Tensor k = at::cat({kv_BTHX.narrow(-1, 0, still), k_turned.expand({-1, -1, heads, -1})}, -1);
  // As wide as keys, which attention wants.
  const at::Tensor v =
      at::constant_pad_nd(kv_BTHX.narrow(-1, still, shape_.value_dim), {0, head_dim_ - shape_.value_dim});
  const at::Tensor y_BTHD = inputs.cache != nullptr ? inputs.cache->attend(layer_, q, k, v)
                            : across_ ? across_->attend(q, k, v, inputs.document_lengths, /*window=*/0, name_)
                                      : kernels::causal_attention(q, k, v, inputs.document_lengths);
  const at::Tensor y = y_BTHD.narrow(-1, 0, shape_.value_dim).flatten(2);
  return across_ ? across_->leave_layer(o_proj_->without_bias(y), o_proj_->bias, name_) : o_proj_(y);
}

void LatentAttentionImpl::set_across(std::shared_ptr<AcrossRanks> across, const std::string& name) {
  across_ = std::move(across);
  name_ = name;
}

}  // namespace fsdp::models
