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

at::Tensor attend(const at::Tensor& q_BTHD, const at::Tensor& k_BSHD, const at::Tensor& v_BSHD, bool causal,
                  const std::optional<at::Tensor>& mask = {}) {
  return at::scaled_dot_product_attention(q_BTHD.transpose(1, 2), k_BSHD.transpose(1, 2), v_BSHD.transpose(1, 2), mask,
                                          /*dropout_p=*/0.0, causal)
      .transpose(1, 2);
}

}  // namespace

at::Tensor cached_attention(const at::Tensor& q_BTHD, const at::Tensor& k_BSKD, const at::Tensor& v_BSKD) {
  const int64_t heads = q_BTHD.size(2), queries = q_BTHD.size(1), keys = k_BSKD.size(1);
  const at::Tensor k_BSHD = expand_heads(k_BSKD, heads), v_BSHD = expand_heads(v_BSKD, heads);
  if (queries == 1 || queries == keys) return attend(q_BTHD, k_BSHD, v_BSHD, /*causal=*/queries == keys);
  // The causal flag aligns the first query with the first key; here the last ones belong together.
  const at::Tensor mask_TS =
      at::ones({queries, keys}, q_BTHD.options().dtype(at::kBool).requires_grad(false)).tril(keys - queries);
  return attend(q_BTHD, k_BSHD, v_BSHD, /*causal=*/false, mask_TS);
}

std::pair<at::Tensor, at::Tensor> LayerCache::append(const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                                                     int64_t start) {
  const int64_t end = start + k_BTKD.size(1);
  const auto store = [&](at::Tensor& kept, const at::Tensor& fresh) {
    if (!kept.defined() || kept.size(1) < end) {
      std::vector<int64_t> shape = fresh.sizes().vec();
      shape[1] = std::max<int64_t>(end, 2 * start);
      at::Tensor larger = at::empty(shape, fresh.options().requires_grad(false));
      if (start > 0) larger.narrow(1, 0, start).copy_(kept.narrow(1, 0, start));
      kept = larger;
    }
    kept.narrow(1, start, end - start).copy_(fresh);
    return kept.narrow(1, 0, end);
  };
  return {store(k_BSKD, k_BTKD), store(v_BSKD, v_BTKD)};
}

AttentionImpl::AttentionImpl(const DecoderConfig& config, int64_t layer, const at::TensorOptions& options)
    : layer_(layer), head_dim_(config.head_dim), has_rope_(config.has_rope(layer)) {
  const int64_t hidden = config.hidden_size, query = config.num_attention_heads * config.head_dim,
                key = config.num_key_value_heads * config.head_dim;
  q_proj_ = register_module("q_proj", Linear(hidden, query, options));
  k_proj_ = register_module("k_proj", Linear(hidden, key, options));
  v_proj_ = register_module("v_proj", Linear(hidden, key, options));
  o_proj_ = register_module("o_proj", Linear(query, hidden, options));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BTE, const AttentionInputs& inputs) {
  const int64_t rows = x_BTE.size(0), length = x_BTE.size(1);
  const auto split_heads = [&](const at::Tensor& x) {
    return x.view({rows, length, x.size(2) / head_dim_, head_dim_});
  };
  at::Tensor q_BTHD = split_heads(q_proj_(x_BTE)), k_BTKD = split_heads(k_proj_(x_BTE));
  at::Tensor v_BTKD = split_heads(v_proj_(x_BTE));
  if (has_rope_) std::tie(q_BTHD, k_BTKD) = kernels::apply_rope(q_BTHD, k_BTKD, inputs.cos, inputs.sin);

  at::Tensor y_BTHD;
  if (inputs.cache != nullptr) {
    const auto [k_BSKD, v_BSKD] =
        inputs.cache->at(static_cast<size_t>(layer_)).append(k_BTKD, v_BTKD, inputs.cached_tokens);
    y_BTHD = cached_attention(q_BTHD, k_BSKD, v_BSKD);
  } else {
    y_BTHD = kernels::causal_attention(q_BTHD, k_BTKD, v_BTKD, inputs.document_lengths);
  }
  return o_proj_(y_BTHD.flatten(2));
}

}  // namespace fsdp::models
