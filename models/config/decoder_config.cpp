#include "models/config/decoder_config.h"

#include <string_view>

#include "io/base/error.h"
#include "models/config/expert_keys.h"
#include "models/config/family.h"

namespace fsdp::models {
namespace {

using nlohmann::json;

json rope_to_json(const RopeConfig& rope) {
  if (rope.kind == RopeConfig::Kind::kDefault) return {{"rope_theta", rope.theta}, {"rope_type", "default"}};
  return {{"rope_theta", rope.theta},
          {"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_position_embeddings", rope.original_max_position_embeddings}};
}

// What config.json of the family can say.
const Family& checked_family(const DecoderConfig& config) {
  const Family* family = find_family(config.model_type);
  const auto error = [&](const std::string& detail) {
    return io::Error(io::ErrorKind::kUsage, "[to_hugging_face] " + detail);
  };
  if (family == nullptr)
    throw error("model_type: got " + io::in_quotes(config.model_type) + ", expected one of " + known_families() + ".");
  if (config.sliding_window > 0 && family->window == WindowRule::kNone)
    throw error("sliding_window: got " + std::to_string(config.sliding_window) + ", expected none for model_type " +
                family->model_type + ". Choose mistral.");
  if (!config.sliding_layers.empty() && family->window == WindowRule::kValue)
    throw error("sliding_layers: got a window in some layers, expected it in all for model_type " + family->model_type +
                ". Choose qwen2.");
  check_experts(*family, config);
  return *family;
}

void add_window(const Family& family, const DecoderConfig& config, json& result) {
  if (family.window == WindowRule::kNone) return;
  const bool has_window = config.sliding_window > 0;
  result["sliding_window"] = has_window ? json(config.sliding_window) : json();
  if (family.window == WindowRule::kValue) return;
  result["use_sliding_window"] = has_window;
  result["layer_types"] = json::array();
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    result["layer_types"].push_back(config.window(layer) > 0 ? "sliding_attention" : "full_attention");
}

int64_t attention_matrix_parameters(const DecoderConfig& config) {
  const int64_t query = config.num_attention_heads * config.head_dim,
                key = config.num_key_value_heads * config.head_dim;
  if (config.latent.rank == 0) return config.hidden_size * (2 * query + 2 * key);
  const LatentConfig& latent = config.latent;
  const int64_t values = config.num_attention_heads * latent.value_dim;
  const int64_t still = config.num_attention_heads * (config.head_dim - latent.rope_dim);
  const int64_t queries =
      latent.query_rank > 0 ? latent.query_rank * (config.hidden_size + query) : config.hidden_size * query;
  return queries + config.hidden_size * (latent.rank + latent.rope_dim) + latent.rank * (still + values) +
         values * config.hidden_size;
}

// Of gate, up and down, or of the router and so many of the experts.
int64_t mlp_parameters(const DecoderConfig& config, int64_t layer, int64_t num_experts) {
  if (!config.has_experts(layer)) return 3 * config.hidden_size * config.intermediate_size;
  const ExpertsConfig& experts = config.experts;
  return config.hidden_size * (experts.count + 3 * (num_experts * experts.inner_size + experts.shared_inner_size));
}

// Of all layers; of experts so many a layer.
int64_t matrix_parameters(const DecoderConfig& config, int64_t num_experts) {
  int64_t sum = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    sum += attention_matrix_parameters(config) + mlp_parameters(config, layer, num_experts);
  return sum;
}

// Norms and biases.
int64_t vector_parameters_per_layer(const DecoderConfig& config) {
  const int64_t norms = 2 * config.hidden_size + (config.has_qk_norm ? 2 * config.head_dim : 0) + config.latent.rank +
                        config.latent.query_rank;
  if (config.attention_bias == AttentionBias::kNone) return norms;
  const int64_t inputs = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim;
  return norms + inputs + (config.attention_bias == AttentionBias::kInputsAndOutput ? config.hidden_size : 0);
}

int64_t all_parameters(const DecoderConfig& config, int64_t num_experts) {
  const int64_t embeddings = config.vocab_size * config.hidden_size * (config.tie_word_embeddings ? 1 : 2);
  return embeddings + matrix_parameters(config, num_experts) +
         config.num_hidden_layers * vector_parameters_per_layer(config) + config.hidden_size;
}

// Of a sequence whose token i sees min(i + 1, window) tokens.
double mean_tokens_seen(int64_t sequence_length, int64_t window) {
  const double length = static_cast<double>(sequence_length);
  if (window == 0 || window >= sequence_length) return (length + 1) / 2;
  const double width = static_cast<double>(window);
  return (width * (width + 1) / 2 + (length - width) * width) / length;
}

}  // namespace

bool DecoderConfig::has_rope(int64_t layer) const {
  return no_rope_layers.empty() || no_rope_layers.at(static_cast<size_t>(layer));
}

int64_t DecoderConfig::window(int64_t layer) const {
  return sliding_layers.empty() || sliding_layers.at(static_cast<size_t>(layer)) ? sliding_window : 0;
}

bool DecoderConfig::has_experts(int64_t layer) const {
  return experts.count > 0 && (experts.dense_layers.empty() || !experts.dense_layers.at(static_cast<size_t>(layer)));
}

json to_hugging_face(const DecoderConfig& config) {
  const Family& family = checked_family(config);
  const auto or_null = [](const std::optional<int64_t>& id) { return id ? json(*id) : json(); };
  json eos = config.eos_token_ids;
  if (eos.size() < 2) eos = eos.empty() ? json() : json(config.eos_token_ids.front());
  json result = {{"architectures", {family.architecture}},
                 {"attention_dropout", 0.0},
                 {"bos_token_id", or_null(config.bos_token_id)},
                 {"eos_token_id", eos},
                 {"pad_token_id", or_null(config.pad_token_id)},
                 {"head_dim", config.head_dim},
                 {"hidden_act", "silu"},
                 {"hidden_size", config.hidden_size},
                 {"initializer_range", config.initializer_range},
                 {"intermediate_size", config.intermediate_size},
                 {"max_position_embeddings", config.max_position_embeddings},
                 {"model_type", config.model_type},
                 {"num_attention_heads", config.num_attention_heads},
                 {"num_hidden_layers", config.num_hidden_layers},
                 {"num_key_value_heads", config.num_key_value_heads},
                 {"rms_norm_eps", config.rms_norm_eps},
                 {"rope_parameters", rope_to_json(config.rope)},
                 {"tie_word_embeddings", config.tie_word_embeddings},
                 {"use_cache", true},
                 {"vocab_size", config.vocab_size}};
  if (family.has_bias_key) result["attention_bias"] = config.attention_bias != AttentionBias::kNone;
  if (config.model_type == "llama" || config.model_type == "smollm3") result["mlp_bias"] = false;
  if (config.model_type == "smollm3") {
    result["no_rope_layers"] = json::array();
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
      result["no_rope_layers"].push_back(config.has_rope(layer) ? 1 : 0);
  }
  add_window(family, config, result);
  add_experts(family, config, result);
  return result;
}

int64_t num_parameters(const DecoderConfig& config) { return all_parameters(config, config.experts.count); }

int64_t num_active_parameters(const DecoderConfig& config) { return all_parameters(config, config.experts.per_token); }

double flops_per_token(const DecoderConfig& config, int64_t sequence_length) {
  const double matrices = static_cast<double>(matrix_parameters(config, config.experts.per_token)) +
                          static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
  double seen = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    seen += mean_tokens_seen(sequence_length, config.window(layer));
  const int64_t values = config.latent.rank > 0 ? config.latent.value_dim : config.head_dim;
  return 6 * matrices + 6 * seen * static_cast<double>(config.num_attention_heads * (config.head_dim + values));
}

}  // namespace fsdp::models
