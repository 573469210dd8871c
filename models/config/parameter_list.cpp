#include "models/config/parameter_list.h"

#include <utility>

namespace fsdp::models {

std::vector<NamedShape> block_parameters(const DecoderConfig& config, int64_t layer) {
  const std::string block = "model.layers." + std::to_string(layer) + ".";
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t queries = config.num_attention_heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  std::vector<NamedShape> list;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    list.push_back({block + name, std::move(shape)});
  };
  const auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool has_bias) {
    add(name + ".weight", {out, in});
    if (has_bias) add(name + ".bias", {out});
  };
  const auto add_attention = [&] {
    const bool input_bias = config.attention_bias != AttentionBias::kNone;
    add_linear("self_attn.q_proj", queries, hidden, input_bias);
    add_linear("self_attn.k_proj", keys, hidden, input_bias);
    add_linear("self_attn.v_proj", keys, hidden, input_bias);
    add_linear("self_attn.o_proj", hidden, queries, config.attention_bias == AttentionBias::kInputsAndOutput);
    if (config.has_qk_norm) {
      add("self_attn.q_norm.weight", {config.head_dim});
      add("self_attn.k_norm.weight", {config.head_dim});
    }
  };
  if (config.latent.rank > 0) {
    const LatentConfig& latent = config.latent;
    if (latent.query_rank > 0) {
      add_linear("self_attn.q_a_proj", latent.query_rank, hidden, false);
      add("self_attn.q_a_layernorm.weight", {latent.query_rank});
      add_linear("self_attn.q_b_proj", queries, latent.query_rank, false);
    } else {
      add_linear("self_attn.q_proj", queries, hidden, false);
    }
    const int64_t from_latent = config.head_dim - latent.rope_dim + latent.value_dim;
    add_linear("self_attn.kv_a_proj_with_mqa", latent.rank + latent.rope_dim, hidden, false);
    add("self_attn.kv_a_layernorm.weight", {latent.rank});
    add_linear("self_attn.kv_b_proj", config.num_attention_heads * from_latent, latent.rank, false);
    add_linear("self_attn.o_proj", hidden, config.num_attention_heads * latent.value_dim, false);
  } else {
    add_attention();
  }
  const auto add_mlp = [&](const std::string& name, int64_t width) {
    add_linear(name + ".gate_proj", width, hidden, false);
    add_linear(name + ".up_proj", width, hidden, false);
    add_linear(name + ".down_proj", hidden, width, false);
  };
  if (config.has_experts(layer)) {
    const ExpertsConfig& experts = config.experts;
    add_linear("mlp.gate", experts.count, hidden, false);
    add("mlp.experts.gate_up_proj", {experts.count, 2 * experts.inner_size, hidden});
    add("mlp.experts.down_proj", {experts.count, hidden, experts.inner_size});
    if (experts.shared_inner_size > 0) add_mlp("mlp.shared_experts", experts.shared_inner_size);
  } else {
    add_mlp("mlp", inner);
  }
  add("input_layernorm.weight", {hidden});
  add("post_attention_layernorm.weight", {hidden});
  return list;
}

std::vector<NamedShape> outer_parameters(const DecoderConfig& config) {
  const std::vector<int64_t> table = {config.vocab_size, config.hidden_size};
  std::vector<NamedShape> list = {{"model.embed_tokens.weight", table}, {"model.norm.weight", {config.hidden_size}}};
  if (!config.tie_word_embeddings) list.push_back({"lm_head.weight", table});
  return list;
}

}  // namespace fsdp::models
