// The families of models that the decoder covers: how they differ, and what their config.json leaves out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/decoder_config.h"

namespace fsdp::models {

// How a family says that it has a sliding window.
enum class WindowRule {
  kNone,          // no window
  kValue,         // sliding_window, unless it is null
  kSwitched,      // only with use_sliding_window: in layers from max_window_layers on
  kSwitchedNope,  // only with use_sliding_window: in layers without rotary embedding
};

// How a family's config.json and files of weights tell of experts.
enum class ExpertKeys {
  kNone,        // it has none
  kMixtral,     // in all layers; intermediate_size is theirs; w1, w2, w3 of block_sparse_moe
  kDeepseekV2,  // in the layers after first_k_dense_replace; some are shared; latent attention
  kQwen3Moe,    // in the layers that decoder_sparse_step and mlp_only_layers leave
};

// What a family is, and what transformers assumes where a key is absent.
struct Family {
  std::string model_type;
  std::string architecture;
  bool tie_word_embeddings;
  double rope_theta;
  int64_t num_key_value_heads;  // 0: as many as query heads
  int64_t head_dim;             // 0: hidden / heads
  int64_t max_position_embeddings;
  WindowRule window;
  int64_t sliding_window;  // 0: none
  AttentionBias bias;      // without the key attention_bias
  bool has_bias_key;       // whether attention_bias is one of its keys
  bool has_qk_norm;
  ExpertKeys experts = ExpertKeys::kNone;
};

const std::vector<Family>& families();

// The family of that model_type, or null.
const Family* find_family(const std::string& model_type);

// "llama, smollm3, ...", for messages.
std::string known_families();

}  // namespace fsdp::models
