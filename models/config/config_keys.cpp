#include "models/config/config_keys.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace fsdp::models {
namespace {

using nlohmann::json;

// Read or checked below.
constexpr std::string_view kKnownKeys[] = {"architectures",
                                           "attention_bias",
                                           "attention_dropout",
                                           "bos_token_id",
                                           "decoder_sparse_step",
                                           "eos_token_id",
                                           "first_k_dense_replace",
                                           "head_dim",
                                           "hidden_act",
                                           "hidden_size",
                                           "initializer_range",
                                           "intermediate_size",
                                           "kv_lora_rank",
                                           "layer_types",
                                           "max_position_embeddings",
                                           "max_window_layers",
                                           "mlp_only_layers",
                                           "mlp_bias",
                                           "model_type",
                                           "moe_intermediate_size",
                                           "n_group",
                                           "n_routed_experts",
                                           "n_shared_experts",
                                           "no_rope_layers",
                                           "no_rope_layer_interval",
                                           "norm_topk_prob",
                                           "num_attention_heads",
                                           "num_experts",
                                           "num_experts_per_tok",
                                           "num_hidden_layers",
                                           "num_key_value_heads",
                                           "num_local_experts",
                                           "output_router_logits",
                                           "pad_token_id",
                                           "q_lora_rank",
                                           "qk_head_dim",
                                           "qk_nope_head_dim",
                                           "qk_rope_head_dim",
                                           "rms_norm_eps",
                                           "rope_parameters",
                                           "rope_scaling",
                                           "rope_theta",
                                           "routed_scaling_factor",
                                           "router_aux_loss_coef",
                                           "sliding_window",
                                           "tie_word_embeddings",
                                           "topk_group",
                                           "topk_method",
                                           "use_sliding_window",
                                           "v_head_dim",
                                           "vocab_size"};

// Of no effect on what the model computes.
constexpr std::string_view kHarmlessKeys[] = {"_attn_implementation",
                                              "_attn_implementation_autoset",
                                              "_name_or_path",
                                              "chunk_size_feed_forward",
                                              "aux_loss_alpha",
                                              "ep_size",
                                              "seq_aux",
                                              "dtype",
                                              "id2label",
                                              "is_decoder",
                                              "is_llama_config",
                                              "label2id",
                                              "name_or_path",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "pretraining_tp",
                                              "problem_type",
                                              "return_dict",
                                              "sep_token_id",
                                              "task_specific_params",
                                              "torch_dtype",
                                              "torchscript",
                                              "transformers.js_config",
                                              "transformers_version",
                                              "unsloth_fixed",
                                              "unsloth_version",
                                              "use_cache"};

}  // namespace

const std::vector<NeutralKey>& neutral_keys() {
  static const std::vector<NeutralKey> keys = {{"mlp_bias", false},
                                               {"attention_dropout", 0},
                                               {"hidden_dropout", 0},
                                               {"resid_pdrop", 0},
                                               {"embd_pdrop", 0},
                                               {"add_cross_attention", false},
                                               {"is_encoder_decoder", false},
                                               {"use_qk_norm", false},
                                               {"use_mrope", false},
                                               {"qk_norm", false},
                                               {"rope_interleaved", false},
                                               {"partial_rotary_factor", 1},
                                               {"attention_multiplier", 1},
                                               {"embedding_multiplier", 1},
                                               {"residual_multiplier", 1},
                                               {"logits_scaling", 1},
                                               {"logit_scale", 1},
                                               {"attn_logit_softcapping", nullptr},
                                               {"final_logit_softcapping", nullptr},
                                               {"clip_qkv", nullptr},
                                               {"router_jitter_noise", 0},
                                               {"moe_layer_freq", 1},
                                               {"scoring_func", "softmax"},
                                               {"quantization_config", nullptr},
                                               {"attention_chunk_size", nullptr}};
  return keys;
}

std::vector<std::string> find_unknown_keys(const json& object) {
  const auto contains = [](const auto& keys, const std::string& key) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
  };
  std::vector<std::string> unknown;
  for (const auto& [key, value] : object.items()) {
    const bool neutral = std::any_of(neutral_keys().begin(), neutral_keys().end(),
                                     [&name = key](const NeutralKey& entry) { return entry.key == name; });
    if (!neutral && !contains(kKnownKeys, key) && !contains(kHarmlessKeys, key)) unknown.push_back(key);
  }
  return unknown;
}

}  // namespace fsdp::models
