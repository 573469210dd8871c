#include "models/decoder_config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "io/json.h"
#include "models/config_reader.h"

namespace fsdp::models {
namespace {

using nlohmann::json;

// What transformers assumes where a key is absent.
struct Family {
  std::string_view model_type;
  std::string_view architecture;
  bool tie_word_embeddings;
  double rope_theta;
  int64_t num_key_value_heads;  // 0: as many as query heads
  int64_t max_position_embeddings;
};
constexpr Family kFamilies[] = {{"llama", "LlamaForCausalLM", false, 1e4, 0, 2048},
                                {"smollm3", "SmolLM3ForCausalLM", true, 2e6, 4, 32768}};

// Read or checked below.
constexpr std::string_view kKnownKeys[] = {"architectures",
                                           "attention_bias",
                                           "attention_dropout",
                                           "bos_token_id",
                                           "eos_token_id",
                                           "head_dim",
                                           "hidden_act",
                                           "hidden_size",
                                           "initializer_range",
                                           "intermediate_size",
                                           "layer_types",
                                           "max_position_embeddings",
                                           "mlp_bias",
                                           "model_type",
                                           "no_rope_layers",
                                           "no_rope_layer_interval",
                                           "num_attention_heads",
                                           "num_hidden_layers",
                                           "num_key_value_heads",
                                           "pad_token_id",
                                           "rms_norm_eps",
                                           "rope_parameters",
                                           "rope_scaling",
                                           "rope_theta",
                                           "sliding_window",
                                           "tie_word_embeddings",
                                           "use_sliding_window",
                                           "vocab_size"};

// Of no effect on what the model computes.
constexpr std::string_view kHarmlessKeys[] = {"_attn_implementation",
                                              "_attn_implementation_autoset",
                                              "_name_or_path",
                                              "chunk_size_feed_forward",
                                              "dtype",
                                              "id2label",
                                              "is_decoder",
                                              "is_llama_config",
                                              "label2id",
                                              "max_window_layers",
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

// Settings of related families that change the maths: only the neutral value is accepted.
struct NeutralKey {
  std::string_view key;
  json neutral;
};
const std::vector<NeutralKey>& neutral_keys() {
  static const std::vector<NeutralKey> keys = {{"attention_bias", false},
                                               {"mlp_bias", false},
                                               {"attention_dropout", 0},
                                               {"hidden_dropout", 0},
                                               {"resid_pdrop", 0},
                                               {"embd_pdrop", 0},
                                               {"add_cross_attention", false},
                                               {"is_encoder_decoder", false},
                                               {"use_qk_norm", false},
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
                                               {"num_experts", nullptr},
                                               {"num_local_experts", nullptr},
                                               {"quantization_config", nullptr},
                                               {"attention_chunk_size", nullptr}};
  return keys;
}

const Family& read_family(ConfigReader& reader) {
  const std::string type = reader.text("model_type", "");
  for (const Family& family : kFamilies)
    if (family.model_type == type) return family;
  reader.object_to("model_type", "\"llama\" (Llama 2 and 3, SmolLM2) or \"smollm3\"");
  return kFamilies[0];
}

void check_architecture(ConfigReader& reader, const Family& family) {
  const json* value = reader.find("architectures");
  if (value == nullptr || (value->is_array() && value->empty())) return;
  if (*value != json::array({family.architecture}))
    reader.object_to("architectures", "[\"" + std::string(family.architecture) + "\"]");
}

void check_maths(ConfigReader& reader, const Family& family) {
  check_architecture(reader, family);
  for (const NeutralKey& entry : neutral_keys()) {
    const json* value = reader.find(entry.key);
    if (value != nullptr && *value != entry.neutral) reader.object_to(entry.key, entry.neutral.dump());
  }
  const json* activation = reader.find("hidden_act");
  if (activation != nullptr && *activation != "silu" && *activation != "swish")
    reader.object_to("hidden_act", "\"silu\"");
  if (reader.find("sliding_window") != nullptr && reader.boolean("use_sliding_window", true))
    reader.object_to("sliding_window", "null, or use_sliding_window false");
  if (const json* types = reader.find("layer_types")) {
    const bool full = types->is_array() && std::all_of(types->begin(), types->end(),
                                                       [](const json& type) { return type == "full_attention"; });
    if (!full) reader.object_to("layer_types", "\"full_attention\" only");
  }
}

// `source` is rope_parameters (transformers 5) or rope_scaling (transformers 4).
void read_scaling(ConfigReader& reader, ConfigReader& source, RopeConfig& rope) {
  const std::string kind = source.text("rope_type", source.text("type", "default"));
  if (const json* partial = source.find("partial_rotary_factor"); partial != nullptr && *partial != 1)
    source.object_to("partial_rotary_factor", "1");
  if (kind == "llama3") {
    rope.kind = RopeConfig::Kind::kLlama3;
    rope.factor = source.number("factor", 1, 1e6);
    rope.low_freq_factor = source.number("low_freq_factor", 1e-6, 1e6);
    rope.high_freq_factor = source.number("high_freq_factor", 1e-6, 1e6);
    rope.original_max_position_embeddings = source.integer("original_max_position_embeddings", 1, INT32_MAX);
    if (source.find("high_freq_factor") != nullptr && rope.high_freq_factor <= rope.low_freq_factor)
      source.object_to("high_freq_factor", "more than low_freq_factor");
  } else if (kind != "default") {
    source.object_to(source.find("rope_type") != nullptr ? "rope_type" : "type", "\"default\" or \"llama3\"");
  }
  rope.theta = source.number("rope_theta", 1, 1e12, rope.theta);
  reader.absorb(source);
}

// As transformers 5 does: rope_scaling wins over rope_parameters if it is not empty; the top-level rope_theta counts
// where that object has none.
RopeConfig read_rope(ConfigReader& reader, const Family& family) {
  RopeConfig rope;
  rope.theta = reader.number("rope_theta", 1, 1e12, family.rope_theta);
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    const json* value = reader.find(key);
    if (value == nullptr || (value->is_object() && value->empty())) continue;
    const bool per_layer_type = value->is_object() && std::any_of(value->begin(), value->end(),
                                                                  [](const json& entry) { return entry.is_object(); });
    if (!value->is_object() || per_layer_type) {
      reader.object_to(key, "one object with rope_type and rope_theta");
      break;
    }
    ConfigReader source(*value, key + ".");
    read_scaling(reader, source, rope);
    break;
  }
  return rope;
}

std::vector<bool> read_no_rope_layers(ConfigReader& reader, const DecoderConfig& config) {
  const int64_t layers = config.num_hidden_layers;
  std::vector<bool> rotated(static_cast<size_t>(layers), true);
  if (config.model_type != "smollm3") {
    if (reader.find("no_rope_layers") != nullptr) reader.object_to("no_rope_layers", "(absent) for this model_type");
    return rotated;
  }
  const json* value = reader.find("no_rope_layers");
  if (value == nullptr) {
    const int64_t interval = reader.integer("no_rope_layer_interval", 1, INT32_MAX, 4);
    for (int64_t layer = 0; layer < layers; ++layer) rotated[static_cast<size_t>(layer)] = (layer + 1) % interval != 0;
    return rotated;
  }
  const bool fits = value->is_array() && value->size() == rotated.size() &&
                    std::all_of(value->begin(), value->end(), [](const json& flag) { return flag == 0 || flag == 1; });
  if (!fits) {
    reader.object_to("no_rope_layers", "a list of 0 and 1, one per layer");
    return rotated;
  }
  for (size_t layer = 0; layer < rotated.size(); ++layer) rotated[layer] = (*value)[layer] == 1;
  return rotated;
}

void read_sizes(ConfigReader& reader, const Family& family, DecoderConfig& config) {
  constexpr int64_t kWidest = int64_t{1} << 22;  // with the other limits: num_parameters() stays below 2^63
  config.vocab_size = reader.integer("vocab_size", 1, int64_t{1} << 24);
  config.hidden_size = reader.integer("hidden_size", 1, kWidest);
  config.intermediate_size = reader.integer("intermediate_size", 1, kWidest);
  config.num_hidden_layers = reader.integer("num_hidden_layers", 1, 4096);
  config.num_attention_heads = reader.integer("num_attention_heads", 1, 4096);
  const int64_t default_kv = family.num_key_value_heads != 0 ? family.num_key_value_heads : config.num_attention_heads;
  config.num_key_value_heads = reader.integer("num_key_value_heads", 1, 4096, default_kv);
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    reader.object_to("num_key_value_heads",
                     "a divisor of num_attention_heads (" + std::to_string(config.num_attention_heads) + ")");
  if (reader.find("head_dim") == nullptr && config.hidden_size % config.num_attention_heads != 0)
    reader.object_to("num_attention_heads", "a divisor of hidden_size, or head_dim given");
  config.head_dim = reader.integer("head_dim", 1, 4096, config.hidden_size / config.num_attention_heads);
  if (config.head_dim < 2 || config.head_dim % 2 != 0) reader.object_to("head_dim", "an even number");
}

void read_tokens(ConfigReader& reader, DecoderConfig& config) {
  config.bos_token_id = reader.token_id("bos_token_id", config.vocab_size);
  config.pad_token_id = reader.token_id("pad_token_id", config.vocab_size);
  const json* end = reader.find("eos_token_id");
  if (end == nullptr) return;
  const json list = end->is_array() ? *end : json::array({*end});
  for (const json& id : list) {
    const bool fits = id.is_number_integer() && id >= -1 && id < config.vocab_size;
    if (!fits) return reader.object_to("eos_token_id", "a token id or a list of them, below vocab_size");
    if (id >= 0) config.eos_token_ids.push_back(id.get<int64_t>());
  }
}

std::vector<std::string> find_unknown_keys(const json& object) {
  const auto contains = [](const auto& keys, const std::string& key) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
  };
  std::vector<std::string> warnings;
  for (const auto& [key, value] : object.items()) {
    const bool neutral = std::any_of(neutral_keys().begin(), neutral_keys().end(),
                                     [&name = key](const NeutralKey& entry) { return entry.key == name; });
    if (!neutral && !contains(kKnownKeys, key) && !contains(kHarmlessKeys, key))
      warnings.push_back("config.json: key " + io::in_quotes(key) + " is not known and was ignored");
  }
  return warnings;
}

json rope_to_json(const RopeConfig& rope) {
  if (rope.kind == RopeConfig::Kind::kDefault) return {{"rope_theta", rope.theta}, {"rope_type", "default"}};
  return {{"rope_theta", rope.theta},
          {"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_position_embeddings", rope.original_max_position_embeddings}};
}

// Of the seven matrices of one layer.
int64_t matrix_parameters_per_layer(const DecoderConfig& config) {
  const int64_t query = config.num_attention_heads * config.head_dim,
                key = config.num_key_value_heads * config.head_dim;
  return config.hidden_size * (2 * query + 2 * key + 3 * config.intermediate_size);
}

}  // namespace

bool DecoderConfig::has_rope(int64_t layer) const {
  return no_rope_layers.empty() || no_rope_layers.at(static_cast<size_t>(layer));
}

DecoderConfig parse_decoder_config(const json& object, const std::string& origin) {
  if (!object.is_object())
    throw io::Error(io::ErrorKind::kModel,
                    "[read_decoder_config] " + origin + ": got a " + object.type_name() + ", expected a JSON object");
  ConfigReader reader(object);
  const Family& family = read_family(reader);
  check_maths(reader, family);
  DecoderConfig config;
  config.model_type = family.model_type;
  read_sizes(reader, family, config);
  config.rms_norm_eps = reader.number("rms_norm_eps", 0, 1, 1e-6);
  config.rope = read_rope(reader, family);
  config.no_rope_layers = read_no_rope_layers(reader, config);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", family.tie_word_embeddings);
  config.max_position_embeddings =
      reader.integer("max_position_embeddings", 1, INT32_MAX, family.max_position_embeddings);
  config.initializer_range = reader.number("initializer_range", 0, 1e3, 0.02);
  read_tokens(reader, config);
  config.warnings = find_unknown_keys(object);
  reader.finish(origin);
  return config;
}

DecoderConfig read_decoder_config(const std::filesystem::path& path) {
  const std::filesystem::path file = std::filesystem::is_directory(path) ? path / "config.json" : path;
  io::JsonLimits limits;
  limits.kind = io::ErrorKind::kModel;
  return parse_decoder_config(io::read_json_file(file, limits), io::in_quotes(file.string()));
}

json to_hugging_face(const DecoderConfig& config) {
  const auto family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const Family& entry) { return entry.model_type == config.model_type; });
  if (family == std::end(kFamilies))
    throw io::Error(io::ErrorKind::kUsage, "[to_hugging_face] model_type: got " + io::in_quotes(config.model_type) +
                                               ", expected llama or smollm3");
  const auto or_null = [](const std::optional<int64_t>& id) { return id ? json(*id) : json(); };
  json eos = config.eos_token_ids;
  if (eos.size() < 2) eos = eos.empty() ? json() : json(config.eos_token_ids.front());
  json result = {{"architectures", {family->architecture}},
                 {"attention_bias", false},
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
                 {"mlp_bias", false},
                 {"model_type", config.model_type},
                 {"num_attention_heads", config.num_attention_heads},
                 {"num_hidden_layers", config.num_hidden_layers},
                 {"num_key_value_heads", config.num_key_value_heads},
                 {"rms_norm_eps", config.rms_norm_eps},
                 {"rope_parameters", rope_to_json(config.rope)},
                 {"tie_word_embeddings", config.tie_word_embeddings},
                 {"use_cache", true},
                 {"vocab_size", config.vocab_size}};
  if (config.model_type == "smollm3") {
    json flags = json::array();
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) flags.push_back(config.has_rope(layer) ? 1 : 0);
    result["no_rope_layers"] = flags;
    result["use_sliding_window"] = false;
  }
  return result;
}

int64_t num_parameters(const DecoderConfig& config) {
  const int64_t embeddings = config.vocab_size * config.hidden_size * (config.tie_word_embeddings ? 1 : 2);
  const int64_t per_layer = matrix_parameters_per_layer(config) + 2 * config.hidden_size;
  return embeddings + config.num_hidden_layers * per_layer + config.hidden_size;
}

double flops_per_token(const DecoderConfig& config, int64_t sequence_length) {
  const double layers = static_cast<double>(config.num_hidden_layers);
  const double matrices = layers * static_cast<double>(matrix_parameters_per_layer(config)) +
                          static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
  const double attention = layers * static_cast<double>(sequence_length + 1) *
                           static_cast<double>(config.num_attention_heads * config.head_dim);
  return 6 * matrices + 6 * attention;
}

}  // namespace fsdp::models
