#include "models/config/activations.h"

namespace fsdp::models {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
constexpr auto kIndexBytes = static_cast<int64_t>(sizeof(int64_t));

struct Kept {
  int64_t elements = 0;    // in the type of activations
  int64_t statistics = 0;  // fp32
  int64_t indices = 0;     // int64
};

// What attention reads and writes; what the norms of heads read; the logarithm of each head's sum of weights.
Kept kept_of_attention(const DecoderConfig& config) {
  const int64_t heads = config.num_attention_heads, queries = heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  if (config.latent.rank > 0) {
    const LatentConfig& latent = config.latent;
    // Norms of short vectors keep what they read and give; values are as wide as keys, but for the last product.
    const int64_t values = latent.value_dim < config.head_dim ? heads * latent.value_dim : 0;
    return {4 * queries + 2 * latent.rank + 2 * latent.query_rank + values,
            heads + 1 + (latent.query_rank > 0 ? 1 : 0)};
  }
  Kept kept{2 * queries + 2 * keys, heads};
  if (!config.has_qk_norm) return kept;
  return {kept.elements + queries + keys, kept.statistics + heads + config.num_key_value_heads};
}

// Gate, up and their product, where they are kept.
Kept kept_of_mlp(const DecoderConfig& config, Recompute what) {
  if (what == Recompute::kGateUp) return {};
  return {(what == Recompute::kNone ? 3 : 2) * config.intermediate_size};
}

// Of each choice: the row that goes to the expert, what it makes of that, its weight and where it lies; of each token
// the scores. Nothing of it is computed again but with its whole block.
Kept kept_of_experts(const DecoderConfig& config) {
  const ExpertsConfig& experts = config.experts;
  const int64_t choices = experts.per_token;
  return {choices * (2 * config.hidden_size + 3 * experts.inner_size) + 3 * experts.shared_inner_size,
          experts.count + 2 * choices + 1, 3 * choices};
}

}  // namespace

int64_t kept_bytes_per_token(const DecoderConfig& config, int64_t layer, Recompute what, int64_t element_size) {
  const int64_t hidden = config.hidden_size;
  if (what == Recompute::kBlock) return hidden * element_size;
  const bool has_experts = config.has_experts(layer);
  const Kept attention = kept_of_attention(config);
  const Kept mlp = has_experts ? kept_of_experts(config) : kept_of_mlp(config, what);
  // Both norms: what they read, and where that is kept what they give, with a number for each row.
  const int64_t norms = what == Recompute::kNone ? 2 : has_experts ? 1 : 0;
  return ((2 + norms) * hidden + attention.elements + mlp.elements) * element_size +
         (norms + attention.statistics + mlp.statistics) * kFloatBytes + mlp.indices * kIndexBytes;
}

int64_t kept_bytes_per_token(const DecoderConfig& config, Recompute what, int64_t element_size) {
  return kept_bytes_per_token(config, 0, what, element_size);
}

}  // namespace fsdp::models
