#include "models/config/expert_keys.h"

#include <algorithm>
#include <string>

#include "io/base/error.h"

namespace fsdp::models {
namespace {

using nlohmann::json;

// Where config.json says nothing: as transformers assumes.
struct ExpertDefaults {
  int64_t count, per_token, inner_size;
};
ExpertDefaults defaults_of(ExpertKeys keys) {
  if (keys == ExpertKeys::kMixtral) return {8, 2, 0};
  return keys == ExpertKeys::kQwen3Moe ? ExpertDefaults{128, 8, 768} : ExpertDefaults{64, 6, 1407};
}

constexpr int64_t kMostExperts = 4096;
constexpr int64_t kWidestExpert = int64_t{1} << 22;
constexpr int64_t kWidestLayer = int64_t{1} << 25;  // with the other limits: num_parameters() stays below 2^63

// A dense family: the same keys may be there, but null.
void refuse_experts(ConfigReader& reader) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"})
    if (reader.find(key) != nullptr) reader.object_to(key, "null, for this model_type");
}

// Transformers 4 and published files say num_experts of Qwen3-MoE, transformers 5 num_local_experts.
int64_t read_count(ConfigReader& reader, ExpertKeys keys) {
  const char* key = keys == ExpertKeys::kDeepseekV2         ? "n_routed_experts"
                    : reader.find("num_experts") != nullptr ? "num_experts"
                                                            : "num_local_experts";
  return reader.integer(key, 1, kMostExperts, defaults_of(keys).count);
}

bool is_layer_number(const json& value, int64_t layers) {
  return value.is_number_integer() && value >= 0 && value < layers;
}

std::vector<bool> read_dense_layers(ConfigReader& reader, int64_t layers) {
  std::vector<bool> dense(static_cast<size_t>(layers), false);
  const int64_t step = reader.integer("decoder_sparse_step", 1, INT32_MAX, 1);
  for (int64_t layer = 0; layer < layers; ++layer) dense[static_cast<size_t>(layer)] = (layer + 1) % step != 0;
  const json* list = reader.find("mlp_only_layers");
  const bool fits = list == nullptr || (list->is_array() && std::all_of(list->begin(), list->end(), [&](const auto& n) {
                                          return is_layer_number(n, layers);
                                        }));
  if (!fits) {
    reader.object_to("mlp_only_layers", "a list of layers, from 0 to " + std::to_string(layers - 1));
  } else if (list != nullptr) {
    for (const json& layer : *list) dense[layer.get<size_t>()] = true;
  }
  const auto count = std::count(dense.begin(), dense.end(), true);
  if (count == layers) reader.object_to("mlp_only_layers", "at least one layer with experts");
  return count == 0 ? std::vector<bool>() : dense;
}

// The choice of experts as DeepSeek-V2 says it.
void read_deepseek(ConfigReader& reader, DecoderConfig& config) {
  ExpertsConfig& experts = config.experts;
  if (reader.boolean("norm_topk_prob", false)) reader.object_to("norm_topk_prob", "false, for this model_type");
  experts.normalise = false;
  experts.scale = reader.number("routed_scaling_factor", 0, 1e6, 1);
  experts.shared_inner_size = reader.integer("n_shared_experts", 1, kMostExperts, 2) * experts.inner_size;
  const std::string method = reader.text("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    experts.groups = reader.integer("n_group", 1, experts.count);
    experts.best_groups = reader.integer("topk_group", 1, experts.groups);
    const int64_t own = experts.count / experts.groups;
    if (experts.count % experts.groups != 0 || experts.per_token > own * experts.best_groups)
      reader.object_to("n_group", "a divisor of n_routed_experts, whose topk_group best have num_experts_per_tok");
  } else if (method != "greedy") {
    reader.object_to("topk_method", "\"greedy\" or \"group_limited_greedy\"");
  }
  const int64_t first = reader.integer("first_k_dense_replace", 0, config.num_hidden_layers - 1, 0);
  if (first == 0) return;
  experts.dense_layers.assign(static_cast<size_t>(config.num_hidden_layers), false);
  std::fill_n(experts.dense_layers.begin(), first, true);
}

void read_latent(ConfigReader& reader, DecoderConfig& config) {
  constexpr int64_t kWidestHead = 4096;
  LatentConfig& latent = config.latent;
  latent.rank = reader.integer("kv_lora_rank", 1, kWidestExpert, 512);
  latent.query_rank = reader.is_null("q_lora_rank") ? 0 : reader.integer("q_lora_rank", 1, kWidestExpert, 1536);
  latent.rope_dim = reader.integer("qk_rope_head_dim", 2, kWidestHead, 64);
  if (latent.rope_dim % 2 != 0) reader.object_to("qk_rope_head_dim", "an even number");
  config.head_dim = reader.integer("qk_nope_head_dim", 1, kWidestHead, 128) + latent.rope_dim;
  latent.value_dim = reader.integer("v_head_dim", 1, config.head_dim, std::min<int64_t>(128, config.head_dim));
  if (config.num_key_value_heads != config.num_attention_heads)
    reader.object_to("num_key_value_heads", "num_attention_heads, for this model_type");
}

void add_latent(const DecoderConfig& config, json& result) {
  const LatentConfig& latent = config.latent;
  result["head_dim"] = latent.rope_dim;
  result["kv_lora_rank"] = latent.rank;
  result["q_lora_rank"] = latent.query_rank > 0 ? json(latent.query_rank) : json();
  result["qk_nope_head_dim"] = config.head_dim - latent.rope_dim;
  result["qk_rope_head_dim"] = latent.rope_dim;
  result["v_head_dim"] = latent.value_dim;
}

int64_t num_dense_at_first(const ExpertsConfig& experts) {
  return std::count(experts.dense_layers.begin(), experts.dense_layers.end(), true);
}

void add_deepseek(const ExpertsConfig& experts, json& result) {
  result["n_routed_experts"] = experts.count;
  result["n_shared_experts"] = experts.shared_inner_size / experts.inner_size;
  result["norm_topk_prob"] = false;
  result["routed_scaling_factor"] = experts.scale;
  result["topk_method"] = experts.groups > 1 ? "group_limited_greedy" : "greedy";
  result["n_group"] = experts.groups;
  result["topk_group"] = experts.best_groups;
  result["first_k_dense_replace"] = num_dense_at_first(experts);
}

void check_deepseek(const DecoderConfig& config) {
  const ExpertsConfig& experts = config.experts;
  const bool is_whole = experts.shared_inner_size > 0 && experts.shared_inner_size % experts.inner_size == 0;
  const auto last_dense = std::find(experts.dense_layers.rbegin(), experts.dense_layers.rend(), true);
  const bool are_first = experts.dense_layers.rend() - last_dense == num_dense_at_first(experts);
  if (is_whole && are_first && !experts.normalise) return;
  throw io::Error(
      io::ErrorKind::kUsage,
      "[to_hugging_face] experts: got those of another family, expected a whole number of shared ones, MLPs in "
      "the first layers only, and weights that need not add up to 1 for model_type deepseek_v2. Choose "
      "qwen3_moe.");
}

}  // namespace

void read_experts(ConfigReader& reader, const Family& family, DecoderConfig& config) {
  if (family.experts == ExpertKeys::kNone) return refuse_experts(reader);
  ExpertsConfig& experts = config.experts;
  const bool is_mixtral = family.experts == ExpertKeys::kMixtral;
  const ExpertDefaults defaults = defaults_of(family.experts);
  experts.count = read_count(reader, family.experts);
  experts.per_token =
      reader.integer("num_experts_per_tok", 1, experts.count, std::min(experts.count, defaults.per_token));
  experts.balance_loss = reader.number("router_aux_loss_coef", 0, 1e6, 0.001);
  experts.inner_size = is_mixtral ? config.intermediate_size
                                  : reader.integer("moe_intermediate_size", 1, kWidestExpert, defaults.inner_size);
  if (experts.count * experts.inner_size > kWidestLayer)
    reader.object_to(is_mixtral ? "num_local_experts" : "num_experts", "experts of fewer inner features together");
  if (is_mixtral) return;
  if (family.experts == ExpertKeys::kDeepseekV2) {
    read_latent(reader, config);
    return read_deepseek(reader, config);
  }
  experts.normalise = reader.boolean("norm_topk_prob", false);
  experts.dense_layers = read_dense_layers(reader, config.num_hidden_layers);
}

void add_experts(const Family& family, const DecoderConfig& config, json& result) {
  if (family.experts == ExpertKeys::kNone) return;
  const ExpertsConfig& experts = config.experts;
  result["num_experts_per_tok"] = experts.per_token;
  result["router_aux_loss_coef"] = experts.balance_loss;
  result["output_router_logits"] = false;
  if (family.experts == ExpertKeys::kMixtral) {
    result["num_local_experts"] = experts.count;
    result["router_jitter_noise"] = 0.0;
    return;
  }
  result["moe_intermediate_size"] = experts.inner_size;
  if (family.experts == ExpertKeys::kDeepseekV2) {
    add_latent(config, result);
    return add_deepseek(experts, result);
  }
  result["num_experts"] = experts.count;
  result["norm_topk_prob"] = experts.normalise;
  result["decoder_sparse_step"] = 1;
  result["mlp_only_layers"] = json::array();
  for (size_t layer = 0; layer < experts.dense_layers.size(); ++layer)
    if (experts.dense_layers[layer]) result["mlp_only_layers"].push_back(layer);
}

void check_experts(const Family& family, const DecoderConfig& config) {
  const ExpertsConfig& experts = config.experts;
  const auto error = [&](const std::string& detail) {
    return io::Error(io::ErrorKind::kUsage, "[to_hugging_face] experts: " + detail);
  };
  const bool has_experts = experts.count > 0;
  if (has_experts != (family.experts != ExpertKeys::kNone))
    throw error("got " + std::to_string(experts.count) + ", expected " + (has_experts ? "none" : "some") +
                " for model_type " + family.model_type + ". Choose " +
                (has_experts ? "mixtral or qwen3_moe." : "another family, or give their number."));
  if (!has_experts) return;
  const bool is_deepseek = family.experts == ExpertKeys::kDeepseekV2;
  if (is_deepseek != (config.latent.rank > 0))
    throw error("got " + std::string(is_deepseek ? "ordinary" : "latent") + " attention with model_type " +
                family.model_type + ". Choose " + (is_deepseek ? "qwen3_moe." : "deepseek_v2."));
  if (is_deepseek) return check_deepseek(config);
  if (experts.shared_inner_size > 0 || experts.groups != 1 || experts.scale != 1)
    throw error("got shared ones, groups or a factor, expected none for model_type " + family.model_type +
                ". Choose deepseek_v2.");
  const bool is_mixtral = family.experts == ExpertKeys::kMixtral;
  if (is_mixtral &&
      (experts.inner_size != config.intermediate_size || !experts.normalise || !experts.dense_layers.empty()))
    throw error(
        "got those of another family, expected in all layers, of intermediate_size, with weights that add up "
        "to 1 for model_type mixtral. Choose qwen3_moe.");
}

}  // namespace fsdp::models
