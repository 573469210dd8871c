// The decoder that plans are held against real steps with.
#pragma once

#include <cstdint>

#include "models/config/family.h"

namespace fsdp::plan {

inline models::DecoderConfig small_decoder(int64_t layers, bool tied, bool biases) {
  models::DecoderConfig config = models::family_config(biases ? "qwen2" : "llama");
  config.vocab_size = 67;
  config.hidden_size = 20;
  config.intermediate_size = 36;
  config.num_hidden_layers = layers;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 10;
  config.tie_word_embeddings = tied;
  return config;
}

}  // namespace fsdp::plan
