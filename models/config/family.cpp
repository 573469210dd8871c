#include "models/config/family.h"

#include <algorithm>

#include "io/base/error.h"

namespace fsdp::models {

const std::vector<Family>& families() {
  constexpr AttentionBias kNoBias = AttentionBias::kNone;
  static const std::vector<Family> all = {
      {"llama", "LlamaForCausalLM", false, 1e4, 0, 0, 2048, WindowRule::kNone, 0, kNoBias, true, false},
      {"smollm3", "SmolLM3ForCausalLM", true, 2e6, 4, 0, 32768, WindowRule::kSwitchedNope, 0, kNoBias, true, false},
      {"mistral", "MistralForCausalLM", false, 1e4, 8, 0, 131072, WindowRule::kValue, 4096, kNoBias, false, false},
      {"qwen2", "Qwen2ForCausalLM", false, 1e4, 32, 0, 32768, WindowRule::kSwitched, 4096, AttentionBias::kInputs,
       false, false},
      {"qwen3", "Qwen3ForCausalLM", false, 1e4, 32, 128, 32768, WindowRule::kSwitched, 4096, kNoBias, true, true},
      {"mixtral", "MixtralForCausalLM", false, 1e6, 8, 0, 131072, WindowRule::kValue, 0, kNoBias, false, false,
       ExpertKeys::kMixtral},
      {"qwen3_moe", "Qwen3MoeForCausalLM", false, 1e4, 4, 0, 32768, WindowRule::kSwitched, 4096, kNoBias, true, true,
       ExpertKeys::kQwen3Moe},
      {"deepseek_v2", "DeepseekV2ForCausalLM", false, 1e4, 0, 0, 2048, WindowRule::kNone, 0, kNoBias, false, false,
       ExpertKeys::kDeepseekV2}};
  return all;
}

const Family* find_family(const std::string& model_type) {
  for (const Family& family : families())
    if (family.model_type == model_type) return &family;
  return nullptr;
}

std::string known_families() {
  std::string text;
  for (const std::string& type : model_types()) text += (text.empty() ? "" : ", ") + type;
  return text;
}

const std::vector<std::string>& model_types() {
  static const std::vector<std::string> types = [] {
    std::vector<std::string> all;
    for (const Family& family : families()) all.push_back(family.model_type);
    return all;
  }();
  return types;
}

DecoderConfig family_config(const std::string& model_type) {
  const Family* family = find_family(model_type);
  if (family == nullptr)
    throw io::Error(io::ErrorKind::kUsage, "[family_config] model_type: got " + io::in_quotes(model_type) +
                                               ", expected one of " + known_families() + ".");
  DecoderConfig config;
  config.model_type = family->model_type;
  config.attention_bias = family->bias;
  config.has_qk_norm = family->has_qk_norm;
  config.rope.theta = family->rope_theta;
  config.tie_word_embeddings = family->tie_word_embeddings;
  config.max_position_embeddings = family->max_position_embeddings;
  return config;
}

}  // namespace fsdp::models
