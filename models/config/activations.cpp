#include "models/config/activations.h"

namespace fsdp::models {

int64_t kept_bytes_per_token(const DecoderConfig& config, Recompute what, int64_t element_size) {
  const int64_t hidden = config.hidden_size;
  if (what == Recompute::kBlock) return hidden * element_size;
  const int64_t queries = config.num_attention_heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  // Both inputs of norms; what attention reads and writes; what the norms of heads read.
  int64_t elements = 2 * hidden + 2 * queries + 2 * keys;
  if (config.has_qk_norm) elements += queries + keys;
  if (what != Recompute::kGateUp) elements += 2 * config.intermediate_size;
  if (what == Recompute::kNone) elements += 2 * hidden + config.intermediate_size;
  // The logarithm of each head's sum of weights; of each row of a norm.
  int64_t statistics = config.num_attention_heads;
  if (what == Recompute::kNone) statistics += 2;
  if (config.has_qk_norm) statistics += config.num_attention_heads + config.num_key_value_heads;
  return elements * element_size + statistics * static_cast<int64_t>(sizeof(float));
}

}  // namespace fsdp::models
