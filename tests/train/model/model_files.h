// Small model folders for tests.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/safetensors/safetensors.h"
#include "models/decoder.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace fsdp::train {

// A Llama of 3 layers with room for the byte tokenizer, of sizes that every kernel takes.
inline models::DecoderConfig small_config() {
  models::DecoderConfig config;
  config.vocab_size = 304;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.tie_word_embeddings = true;
  config.initializer_range = 0.3;
  config.max_position_embeddings = 512;
  return config;
}

// Ids that small_config() knows, other ones for another `start`.
inline std::vector<int64_t> prompt_of(int64_t length, int64_t start) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back((start + 37 * i) % 300);
  return ids;
}

// Writes config.json, the weights of `seed` and the mark of the byte tokenizer.
inline void write_model(const std::filesystem::path& folder, const models::DecoderConfig& config, uint64_t seed) {
  models::Decoder model(config);
  model->reset_parameters(seed);
  std::vector<io::TensorDeclaration> tensors;
  for (const auto& entry : model->named_parameters())
    tensors.push_back({entry.key(), io::DType::F32, entry.value().sizes().vec()});
  std::filesystem::create_directories(folder);
  io::SafetensorsWriter writer(folder / "model.safetensors", tensors, {{"format", "pt"}});
  for (const auto& entry : model->named_parameters())
    writer.write(entry.key(), 0, entry.value().numel(), entry.value().const_data_ptr());
  writer.commit();
  std::ofstream(folder / "config.json") << models::to_hugging_face(config).dump();
  std::ofstream(folder / byte_tokenizer::kMarkerFile) << byte_tokenizer::marker_json();
}

}  // namespace fsdp::train
