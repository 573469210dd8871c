#include "models/attention.h"

#include <torch/torch.h>

#include <algorithm>

#include "kernels/causal_attention.h"
#include "kernels/rope.h"

namespace fsdp::models {
namespace {

// Keys or values, one head per query head.
at::Tensor expand_heads(const at::Tensor& x_BSKD, int64_t heads) {
  const int64_t key_heads = x_BSKD.size(2);
  if (key_heads == heads) return x_BSKD;
  const int64_t group = heads / key_heads;
  return x_BSKD.unsqueeze(3)
      .expand({x_BSKD.size(0), x_BSKD.size(1), key_heads, group, x_BSKD.size(3)})
      .reshape({x_BSKD.size(0), x_BSKD.size(1), heads, x_BSKD.size(3)});
}

at::Tensor dot_product_attention(const at::Tensor& q_BTHD, const at::Tensor& k_BSHD, const at::Tensor& v_BSHD,
                                 bool causal, const std::optional<at::Tensor>& mask = {}) {
  return at::scaled_dot_product_attention(q_BTHD.transpose(1, 2), k_BSHD.transpose(1, 2), v_BSHD.transpose(1, 2), mask,
                                          /*dropout_p=*/0.0, causal)
      .transpose(1, 2);
}

}  // namespace

at::Tensor cached_attention(const at::Tensor& q_BTHD, const at::Tensor& k_BSKD, const at::Tensor& v_BSKD,
                            int64_t window) {
  const int64_t heads = q_BTHD.size(2), queries = q_BTHD.size(1), keys = k_BSKD.size(1);
  const bool is_cut = window > 0 && window < keys;
  if (is_cut && queries == keys) return kernels::causal_attention(q_BTHD, k_BSKD, v_BSKD, {}, window);
  if (is_cut && queries == 1) {
    return cached_attention(q_BTHD, k_BSKD.narrow(1, keys - window, window), v_BSKD.narrow(1, keys - window, window));
  }
  const at::Tensor k_BSHD = expand_heads(k_BSKD, heads), v_BSHD = expand_heads(v_BSKD, heads);
  if (queries == 1 || queries == keys) return dot_product_attention(q_BTHD, k_BSHD, v_BSHD, /*causal=*/queries == keys);
  // The causal flag aligns the first query with the first key; here the last ones belong together.
  at::Tensor mask_TS =
      at::ones({queries, keys}, q_BTHD.options().dtype(at::kBool).requires_grad(false)).tril(keys - queries);
  if (is_cut) mask_TS = mask_TS.triu(keys - queries - window + 1);
  return dot_product_attention(q_BTHD, k_BSHD, v_BSHD, /*causal=*/false, mask_TS);
}

std::pair<at::Tensor, at::Tensor> LayerCache::append(const at::Tensor& k_BTKD, const at::Tensor& v_BTKD, int64_t start,
                                                     int64_t window) {
  const int64_t fresh = k_BTKD.size(1);
  const int64_t seen = window > 0 ? std::min(window - 1, start - first) : start - first;  // of the tokens before
  const int64_t begin = start - seen;                                                     // position of the first seen
  const bool fits = k_BSKD.defined() && start - first + fresh <= k_BSKD.size(1);
  const auto store = [&](at::Tensor& kept, const at::Tensor& added) {
    if (!fits) {
      std::vector<int64_t> shape = added.sizes().vec();
      shape[1] = std::max(seen + fresh, 2 * seen);
      const at::Tensor larger = at::empty(shape, added.options().requires_grad(false));
      if (seen > 0) larger.narrow(1, 0, seen).copy_(kept.narrow(1, begin - first, seen));
      kept = larger;
    }
    const int64_t place = fits ? start - first : seen;
    kept.narrow(1, place, fresh).copy_(added);
    return kept.narrow(1, place - seen, seen + fresh);
  };
  const std::pair<at::Tensor, at::Tensor> result = {store(k_BSKD, k_BTKD), store(v_BSKD, v_BTKD)};
  if (!fits) first = begin;
  return result;
}

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

at::Tensor AttentionImpl::forward(const at::Tensor& x_BTE, const AttentionInputs& inputs) {
  const int64_t rows = x_BTE.size(0), length = x_BTE.size(1);
  const auto split_heads = [&](const at::Tensor& x) {
    return x.view({rows, length, x.size(2) / head_dim_, head_dim_});
  };
  at::Tensor q_BTHD = split_heads(q_proj_(x_BTE)), k_BTKD = split_heads(k_proj_(x_BTE));
  const at::Tensor v_BTKD = split_heads(v_proj_(x_BTE));
  if (!q_norm_.is_empty()) {
    q_BTHD = q_norm_(q_BTHD);
    k_BTKD = k_norm_(k_BTKD);
  }
  if (has_rope_) std::tie(q_BTHD, k_BTKD) = kernels::apply_rope(q_BTHD, k_BTKD, inputs.cos, inputs.sin);
  return o_proj_(attend(q_BTHD, k_BTKD, v_BTKD, inputs).flatten(2));
}

at::Tensor AttentionImpl::attend(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                                 const AttentionInputs& inputs) const {
  if (inputs.cache == nullptr)
    return kernels::causal_attention(q_BTHD, k_BTKD, v_BTKD, inputs.document_lengths, window_);
  LayerCache& cache = inputs.cache->at(static_cast<size_t>(layer_));
  const auto [k_BSKD, v_BSKD] = cache.append(k_BTKD, v_BTKD, inputs.cached_tokens, window_);
  return cached_attention(q_BTHD, k_BSKD, v_BSKD, window_);
}

}  // namespace fsdp::models
