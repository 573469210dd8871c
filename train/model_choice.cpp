#include "train/model_choice.h"

#include <filesystem>

#include "fsdp/base/error.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

models::DecoderConfig inline_model(const ModelConfig& config, int64_t data_vocab_size, int64_t data_eos_id) {
  models::DecoderConfig model;
  model.model_type = config.family;
  model.vocab_size = config.vocab_size > 0 ? config.vocab_size : data_vocab_size;
  model.hidden_size = config.hidden_size;
  model.intermediate_size = config.ffn_size;
  model.num_hidden_layers = config.layers;
  model.num_attention_heads = config.heads;
  model.num_key_value_heads = config.kv_heads;
  model.head_dim = config.hidden_size / config.heads;
  model.rms_norm_eps = config.norm_eps;
  model.rope.theta = config.rope_theta;
  model.tie_word_embeddings = config.tie_embeddings;
  model.initializer_range = config.init_std;
  if (config.family == "smollm3" && config.nope_interval > 0) {
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      model.no_rope_layers.push_back((layer + 1) % config.nope_interval != 0);
    }
  }
  if (data_eos_id >= 0) {
    model.eos_token_ids = {data_eos_id};
  }
  return model;
}

bool has_weights(const fs::path& folder) {
  return fs::exists(folder / "model.safetensors") || fs::exists(folder / "model.safetensors.index.json");
}

}  // namespace

ModelChoice choose_model(const ModelConfig& config, int64_t data_vocab_size, int64_t data_eos_id) {
  ModelChoice choice;
  if (config.path.empty()) {
    choice.config = inline_model(config, data_vocab_size, data_eos_id);
  } else {
    choice.config = models::read_decoder_config(config.path);
    const fs::path folder = fs::is_directory(config.path) ? fs::path(config.path) : fs::path(config.path).parent_path();
    if (config.weights == "load" || (config.weights == "auto" && has_weights(folder))) {
      choice.weights = io::ModelFolder::open(folder);
    }
  }
  if (choice.config.vocab_size < data_vocab_size) {
    throw Error(ErrorCode::kUsage, "[train] vocabulary: the data set has " + std::to_string(data_vocab_size) +
                                       " tokens, the model only " + std::to_string(choice.config.vocab_size) +
                                       ". Use a data set of the model's tokenizer" +
                                       (config.path.empty() ? ", or model.vocab_size = 0." : "."));
  }
  return choice;
}

}  // namespace fsdp::train
