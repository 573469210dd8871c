#include "models/config/presets.h"

namespace fsdp::models {
namespace {

// hidden, mlp, layers, heads, key heads.
struct Shape {
  int64_t hidden, intermediate, layers, heads, key_heads;
};

enum class Embeddings { kTied, kSeparate };

struct Tokens {
  int64_t vocab_size, bos, eos;
};
constexpr Tokens kSmolLm2Tokens = {49152, 0, 0};
constexpr Tokens kLlama3Tokens = {128256, 128000, 128001};
constexpr Tokens kLlama2Tokens = {32000, 1, 2};
constexpr Tokens kMistralV3Tokens = {32768, 1, 2};
constexpr Tokens kQwen25Tokens = {151936, 151643, 151643};
constexpr Tokens kQwen25LargeTokens = {152064, 151643, 151643};
constexpr Tokens kQwen3Tokens = {151936, 151643, 151645};

DecoderConfig make_config(const std::string& model_type, const Shape& shape, const Tokens& tokens,
                          Embeddings embeddings) {
  DecoderConfig config = family_config(model_type);
  config.hidden_size = shape.hidden;
  config.intermediate_size = shape.intermediate;
  config.num_hidden_layers = shape.layers;
  config.num_attention_heads = shape.heads;
  config.num_key_value_heads = shape.key_heads;
  config.head_dim = shape.hidden / shape.heads;
  config.vocab_size = tokens.vocab_size;
  config.bos_token_id = tokens.bos;
  config.eos_token_ids = {tokens.eos};
  config.tie_word_embeddings = embeddings == Embeddings::kTied;
  return config;
}

Preset smollm2(const std::string& size, const std::string& published, const Shape& shape, double theta,
               double initializer_range) {
  DecoderConfig config = make_config("llama", shape, kSmolLm2Tokens, Embeddings::kTied);
  config.rms_norm_eps = 1e-5;
  config.rope.theta = theta;
  config.max_position_embeddings = 8192;
  config.initializer_range = initializer_range;
  return {"smollm2-" + size, "HuggingFaceTB/SmolLM2-" + published, config};
}

Preset smollm3() {
  DecoderConfig config = make_config("smollm3", {2048, 11008, 36, 16, 4}, kLlama3Tokens, Embeddings::kTied);
  config.pad_token_id = 128004;
  config.rope.theta = 5e6;
  config.max_position_embeddings = 65536;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    config.no_rope_layers.push_back((layer + 1) % 4 != 0);
  return {"smollm3-3b", "HuggingFaceTB/SmolLM3-3B-Base", config};
}

Preset llama3(const std::string& name, const std::string& published, const Shape& shape, Embeddings embeddings,
              double rope_factor) {
  DecoderConfig config = make_config("llama", shape, kLlama3Tokens, embeddings);
  config.rms_norm_eps = 1e-5;
  config.rope = {RopeConfig::Kind::kLlama3, 5e5, rope_factor, 1, 4, 8192};
  config.max_position_embeddings = 131072;
  return {name, "meta-llama/" + published, config};
}

Preset llama2(const std::string& size, const std::string& published, const Shape& shape) {
  DecoderConfig config = make_config("llama", shape, kLlama2Tokens, Embeddings::kSeparate);
  config.rms_norm_eps = 1e-5;
  config.max_position_embeddings = 4096;
  return {"llama-2-" + size, "meta-llama/Llama-2-" + published + "-hf", config};
}

Preset mistral(const std::string& version, const Tokens& tokens, double theta, int64_t window) {
  DecoderConfig config = make_config("mistral", {4096, 14336, 32, 32, 8}, tokens, Embeddings::kSeparate);
  config.rms_norm_eps = 1e-5;
  config.rope.theta = theta;
  config.sliding_window = window;
  config.max_position_embeddings = 32768;
  return {"mistral-7b-" + version, "mistralai/Mistral-7B-" + version, config};
}

Preset qwen25(const std::string& size, const Shape& shape, const Tokens& tokens, Embeddings embeddings, double eps,
              int64_t max_positions) {
  DecoderConfig config = make_config("qwen2", shape, tokens, embeddings);
  config.rms_norm_eps = eps;
  config.rope.theta = 1e6;
  config.max_position_embeddings = max_positions;
  std::string published = size;
  published.back() = 'B';
  return {"qwen2.5-" + size, "Qwen/Qwen2.5-" + published, config};
}

Preset qwen3(const std::string& size, const Shape& shape, Embeddings embeddings) {
  DecoderConfig config = make_config("qwen3", shape, kQwen3Tokens, embeddings);
  config.head_dim = 128;
  config.rope.theta = 1e6;
  config.max_position_embeddings = 40960;
  std::string published = size;
  published.back() = 'B';
  return {"qwen3-" + size, "Qwen/Qwen3-" + published, config};
}

Preset mixtral() {
  DecoderConfig config = make_config("mixtral", {4096, 14336, 32, 32, 8}, kLlama2Tokens, Embeddings::kSeparate);
  config.rms_norm_eps = 1e-5;
  config.rope.theta = 1e6;
  config.max_position_embeddings = 32768;
  config.experts.count = 8;
  config.experts.per_token = 2;
  config.experts.inner_size = config.intermediate_size;
  config.experts.balance_loss = 0.02;
  return {"mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", config};
}

Preset qwen3_moe(const std::string& size, const std::string& published, const Shape& shape, int64_t expert_size) {
  DecoderConfig config = make_config("qwen3_moe", shape, kQwen3Tokens, Embeddings::kSeparate);
  config.head_dim = 128;
  config.rope.theta = 1e6;
  config.max_position_embeddings = 40960;
  config.experts.count = 128;
  config.experts.per_token = 8;
  config.experts.inner_size = expert_size;
  return {"qwen3-" + size, "Qwen/Qwen3-" + published, config};
}

std::vector<Preset> make_presets() {
  constexpr Embeddings kTied = Embeddings::kTied, kSeparate = Embeddings::kSeparate;
  constexpr int64_t kShort = 32768, kLong = 131072;
  return {
      smollm2("135m", "135M", {576, 1536, 30, 9, 3}, 1e5, 1.0 / 24),
      smollm2("360m", "360M", {960, 2560, 32, 15, 5}, 1e5, 0.02),
      smollm2("1.7b", "1.7B", {2048, 8192, 24, 32, 32}, 1.3e5, 0.02),
      smollm3(),
      llama3("llama-3.2-1b", "Llama-3.2-1B", {2048, 8192, 16, 32, 8}, kTied, 32),
      llama3("llama-3.2-3b", "Llama-3.2-3B", {3072, 8192, 28, 24, 8}, kTied, 32),
      llama3("llama-3.1-8b", "Llama-3.1-8B", {4096, 14336, 32, 32, 8}, kSeparate, 8),
      llama3("llama-3.1-70b", "Llama-3.1-70B", {8192, 28672, 80, 64, 8}, kSeparate, 8),
      llama3("llama-3.1-405b", "Llama-3.1-405B", {16384, 53248, 126, 128, 8}, kSeparate, 8),
      llama2("7b", "7b", {4096, 11008, 32, 32, 32}),
      llama2("13b", "13b", {5120, 13824, 40, 40, 40}),
      llama2("70b", "70b", {8192, 28672, 80, 64, 8}),
      mistral("v0.1", kLlama2Tokens, 1e4, 4096),
      mistral("v0.3", kMistralV3Tokens, 1e6, 0),
      qwen25("0.5b", {896, 4864, 24, 14, 2}, kQwen25Tokens, kTied, 1e-6, kShort),
      qwen25("1.5b", {1536, 8960, 28, 12, 2}, kQwen25Tokens, kTied, 1e-6, kLong),
      qwen25("3b", {2048, 11008, 36, 16, 2}, kQwen25Tokens, kTied, 1e-6, kShort),
      qwen25("7b", {3584, 18944, 28, 28, 4}, kQwen25LargeTokens, kSeparate, 1e-6, kLong),
      qwen25("14b", {5120, 13824, 48, 40, 8}, kQwen25LargeTokens, kSeparate, 1e-5, kLong),
      qwen25("32b", {5120, 27648, 64, 40, 8}, kQwen25LargeTokens, kSeparate, 1e-5, kLong),
      qwen25("72b", {8192, 29568, 80, 64, 8}, kQwen25LargeTokens, kSeparate, 1e-5, kLong),
      qwen3("0.6b", {1024, 3072, 28, 16, 8}, kTied),
      qwen3("1.7b", {2048, 6144, 28, 16, 8}, kTied),
      qwen3("4b", {2560, 9728, 36, 32, 8}, kTied),
      qwen3("8b", {4096, 12288, 36, 32, 8}, kSeparate),
      qwen3("14b", {5120, 17408, 40, 40, 8}, kSeparate),
      qwen3("32b", {5120, 25600, 64, 64, 8}, kSeparate),
      mixtral(),
      qwen3_moe("30b-a3b", "30B-A3B", {2048, 6144, 48, 32, 4}, 768),
      qwen3_moe("235b-a22b", "235B-A22B", {4096, 12288, 94, 64, 4}, 1536),
  };
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = make_presets();
  return all;
}

const Preset* find_preset(const std::string& name) {
  for (const Preset& preset : presets())
    if (preset.name == name) return &preset;
  return nullptr;
}

}  // namespace fsdp::models
