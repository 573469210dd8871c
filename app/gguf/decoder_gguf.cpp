#include "app/gguf/decoder_gguf.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>
#include <numbers>

#include "fsdp/base/error.h"
#include "io/base/error.h"

namespace fsdp::app {
namespace {

[[noreturn]] void refuse_gguf(const std::string& message) {
  throw Error(ErrorCode::kUsage, "[export] gguf: " + message);
}

std::string architecture_of(const models::DecoderConfig& config) {
  return config.model_type == "mistral" ? "llama" : config.model_type;
}

// transformers rotates halves in all families; only these are rotated by neighbours in llama.cpp.
bool rotates_neighbours(const models::DecoderConfig& config) {
  const std::string architecture = architecture_of(config);
  return architecture == "llama" || architecture == "smollm3";
}

void check_layers(const models::DecoderConfig& config) {
  if (config.experts.count > 0)
    refuse_gguf("model_type: got " + config.model_type +
                ", expected a model without experts, whose tensors are one another's neighbours in llama.cpp.");
  const bool is_smollm3 = config.model_type == "smollm3";
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool expected = !is_smollm3 || (layer + 1) % 4 != 0;
    if (config.has_rope(layer) != expected)
      refuse_gguf("layer " + std::to_string(layer) + ": got one " + (expected ? "without" : "with") +
                  " rotary embedding, expected the opposite: llama.cpp leaves it out in every fourth layer of smollm3 "
                  "and in no other. Train with model.nope_interval = " +
                  (is_smollm3 ? "4." : "0."));
    if (config.window(layer) > 0 && config.window(layer) < config.max_position_embeddings)
      refuse_gguf("sliding_window: got " + std::to_string(config.window(layer)) +
                  ", expected none: llama.cpp lets each token of this architecture see all before it.");
  }
}

void check_biases(const models::DecoderConfig& config) {
  const bool has = config.attention_bias != models::AttentionBias::kNone;
  if (config.attention_bias == models::AttentionBias::kInputsAndOutput || has != (config.model_type == "qwen2"))
    refuse_gguf("attention_bias: got a model " + std::string(has ? "with" : "without") +
                " it, expected biases of q, k and v in qwen2 and none elsewhere.");
}

// 5,012,345 -> "5.0M", 135M -> "135M".
std::string size_label(int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  const auto [scale, unit] = count > 1e12  ? std::pair{1e12, "T"}
                             : count > 1e9 ? std::pair{1e9, "B"}
                             : count > 1e6 ? std::pair{1e6, "M"}
                                           : std::pair{1e3, "K"};
  const double scaled = count / scale;
  const double whole = std::nearbyint(scaled);
  const int digits = whole < 1 ? 2 : whole < 10 ? 1 : 0;
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f%s", digits, scaled, unit);
  return text;
}

uint32_t file_type(io::GgmlType type) {
  switch (type) {
    case io::GgmlType::kF32:
      return 0;
    case io::GgmlType::kF16:
      return 1;
    case io::GgmlType::kQ8_0:
      return 7;
    case io::GgmlType::kBF16:
      return 32;
  }
  return 0;
}

}  // namespace

io::GgufMetadata gguf_metadata(const models::DecoderConfig& config, const std::string& name, io::GgmlType type) {
  check_layers(config);
  check_biases(config);
  const std::string architecture = architecture_of(config);
  io::GgufMetadata metadata = {{"general.architecture", architecture},
                               {"general.type", std::string("model")},
                               {"general.name", name},
                               {"general.size_label", size_label(models::num_parameters(config))}};
  const auto add = [&](const std::string& key, auto value) { metadata.emplace_back(architecture + "." + key, value); };
  const auto count = [&](const std::string& key, int64_t value) { add(key, static_cast<uint32_t>(value)); };
  count("block_count", config.num_hidden_layers);
  count("context_length", config.max_position_embeddings);
  count("embedding_length", config.hidden_size);
  count("feed_forward_length", config.intermediate_size);
  count("attention.head_count", config.num_attention_heads);
  count("attention.head_count_kv", config.num_key_value_heads);
  add("rope.freq_base", static_cast<float>(config.rope.theta));
  add("attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_norm_eps));
  count("attention.key_length", config.head_dim);
  count("attention.value_length", config.head_dim);
  metadata.emplace_back("general.file_type", file_type(type));
  if (rotates_neighbours(config)) {
    count("vocab_size", config.vocab_size);
    count("rope.dimension_count", config.head_dim);
  }
  metadata.emplace_back("general.quantization_version", uint32_t{2});
  return metadata;
}

std::optional<std::string> gguf_name(const std::string& name) {
  static const std::map<std::string, std::string> outer = {{"model.embed_tokens.weight", "token_embd.weight"},
                                                           {"model.norm.weight", "output_norm.weight"},
                                                           {"lm_head.weight", "output.weight"}};
  static const std::map<std::string, std::string> in_block = {
      {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  if (const auto found = outer.find(name); found != outer.end()) return found->second;
  const std::string begin = "model.layers.";
  if (name.rfind(begin, 0) != 0) return std::nullopt;
  const size_t after_layer = name.find('.', begin.size()), before_kind = name.rfind('.');
  if (after_layer == std::string::npos || before_kind <= after_layer) return std::nullopt;
  const auto found = in_block.find(name.substr(after_layer + 1, before_kind - after_layer - 1));
  if (found == in_block.end()) return std::nullopt;
  return "blk." + name.substr(begin.size(), after_layer - begin.size()) + "." + found->second +
         name.substr(before_kind);
}

RowOrder::RowOrder(const models::DecoderConfig& config, const std::string& name) {
  const bool is_turned = name.find(".self_attn.q_proj.weight") != std::string::npos ||
                         name.find(".self_attn.k_proj.weight") != std::string::npos;
  if (is_turned && rotates_neighbours(config)) half_ = config.head_dim / 2;
}

int64_t RowOrder::operator()(int64_t row) const {
  if (half_ == 0) return row;
  const int64_t in_head = row % (2 * half_);
  return row - in_head + in_head % half_ * 2 + in_head / half_;
}

std::vector<float> rope_divisors(const models::DecoderConfig& config) {
  const models::RopeConfig& rope = config.rope;
  if (rope.kind != models::RopeConfig::Kind::kLlama3) return {};
  const auto context = static_cast<double>(rope.original_max_position_embeddings);
  std::vector<float> divisors;
  for (int64_t i = 0; i < config.head_dim; i += 2) {
    const double frequency = std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(config.head_dim));
    const double turns = context * frequency / (2 * std::numbers::pi);  // within the context of the training before
    double divisor = rope.factor;
    if (turns > rope.high_freq_factor) {
      divisor = 1;
    } else if (turns >= rope.low_freq_factor) {
      const double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      divisor = 1 / ((1 - smooth) / rope.factor + smooth);
    }
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

}  // namespace fsdp::app
