// config.json of the supported families, in the layouts of transformers 4 and 5.
#include <algorithm>
#include <array>
#include <string_view>

#include "io/base/json.h"
#include "models/config/config_keys.h"
#include "models/config/config_reader.h"
#include "models/config/decoder_config.h"
#include "models/config/expert_keys.h"
#include "models/config/family.h"

namespace fsdp::models {
namespace {

using nlohmann::json;

const Family& read_family(ConfigReader& reader) {
  const Family* family = find_family(reader.text("model_type", ""));
  if (family != nullptr) return *family;
  reader.object_to("model_type", known_families());
  return families().front();
}

void check_architecture(ConfigReader& reader, const Family& family) {
  const json* value = reader.find("architectures");
  if (value == nullptr || (value->is_array() && value->empty())) return;
  if (*value != json::array({family.architecture}))
    reader.object_to("architectures", "[\"" + family.architecture + "\"]");
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
}

// Which layers have the window, as the list layer_types says or, without it, the family's rule.
std::vector<bool> read_sliding_layers(ConfigReader& reader, WindowRule rule, const DecoderConfig& config) {
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  std::vector<bool> sliding(layers, rule == WindowRule::kValue);
  const json* types = reader.find("layer_types");
  if (types == nullptr) {
    const int64_t first = reader.integer("max_window_layers", 0, INT32_MAX, 28);
    for (size_t layer = 0; layer < layers; ++layer) {
      if (rule == WindowRule::kSwitched) sliding[layer] = static_cast<int64_t>(layer) >= first;
      if (rule == WindowRule::kSwitchedNope) sliding[layer] = !config.has_rope(static_cast<int64_t>(layer));
    }
    return sliding;
  }
  const bool known =
      types->is_array() && types->size() == layers && std::all_of(types->begin(), types->end(), [](const json& type) {
        return type == "full_attention" || type == "sliding_attention";
      });
  if (!known) {
    reader.object_to("layer_types", "a list of \"full_attention\" and \"sliding_attention\", one per layer");
    return sliding;
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    const bool slides = (*types)[layer] == "sliding_attention";
    if (rule == WindowRule::kValue && !slides) {
      reader.object_to("layer_types", "\"sliding_attention\" only, for this model_type with a sliding_window");
      break;
    }
    sliding[layer] = slides;
  }
  return sliding;
}

// A layer_types without any window to go with it.
void check_all_full(ConfigReader& reader) {
  const json* types = reader.find("layer_types");
  const bool full =
      types == nullptr || (types->is_array() && std::all_of(types->begin(), types->end(),
                                                            [](const json& type) { return type == "full_attention"; }));
  if (!full) reader.object_to("layer_types", "\"full_attention\" only, without a sliding window in use");
}

// REQUIRES: the layers and their rotary embeddings are known.
void read_window(ConfigReader& reader, const Family& family, DecoderConfig& config) {
  const bool is_switched = family.window == WindowRule::kSwitched || family.window == WindowRule::kSwitchedNope;
  const bool is_on = reader.boolean("use_sliding_window", !is_switched);
  const bool is_null = reader.is_null("sliding_window");
  if (family.window == WindowRule::kNone && is_on && reader.find("sliding_window") != nullptr)
    reader.object_to("sliding_window", "null, or use_sliding_window false");
  if (family.window == WindowRule::kValue && !is_on && !is_null)
    reader.object_to("use_sliding_window", "(absent); sliding_window null turns the window of this model_type off");
  const bool is_used = family.window != WindowRule::kNone && is_on && !is_null;
  config.sliding_window = is_used ? reader.integer("sliding_window", 1, INT32_MAX, family.sliding_window) : 0;
  if (config.sliding_window == 0) return check_all_full(reader);
  const std::vector<bool> sliding = read_sliding_layers(reader, family.window, config);
  const auto count = std::count(sliding.begin(), sliding.end(), true);
  if (count == 0) config.sliding_window = 0;
  if (count > 0 && count < config.num_hidden_layers) config.sliding_layers = sliding;
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
  const bool as_queries = family.num_key_value_heads == 0 || reader.is_null("num_key_value_heads");
  config.num_key_value_heads = reader.integer("num_key_value_heads", 1, 4096,
                                              as_queries ? config.num_attention_heads : family.num_key_value_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    reader.object_to("num_key_value_heads",
                     "a divisor of num_attention_heads (" + std::to_string(config.num_attention_heads) + ")");
  const bool has_default = family.head_dim != 0 && !reader.is_null("head_dim");
  if (reader.find("head_dim") == nullptr && !has_default && config.hidden_size % config.num_attention_heads != 0)
    reader.object_to("num_attention_heads", "a divisor of hidden_size, or head_dim given");
  config.head_dim = reader.integer("head_dim", 1, 4096,
                                   has_default ? family.head_dim : config.hidden_size / config.num_attention_heads);
  if (config.head_dim < 2 || config.head_dim % 2 != 0) reader.object_to("head_dim", "an even number");
}

void read_attention_bias(ConfigReader& reader, const Family& family, DecoderConfig& config) {
  if (family.has_bias_key) {
    if (reader.boolean("attention_bias", false)) config.attention_bias = AttentionBias::kInputsAndOutput;
    return;
  }
  const bool built_in = family.bias != AttentionBias::kNone;
  if (reader.boolean("attention_bias", built_in) != built_in)
    reader.object_to("attention_bias", "(absent): biases are fixed for this model_type");
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

}  // namespace

DecoderConfig parse_decoder_config(const json& object, const std::string& origin) {
  if (!object.is_object())
    throw io::Error(io::ErrorKind::kModel,
                    "[read_decoder_config] " + origin + ": got a " + object.type_name() + ", expected a JSON object");
  ConfigReader reader(object);
  const Family& family = read_family(reader);
  check_maths(reader, family);
  DecoderConfig config = family_config(family.model_type);
  read_sizes(reader, family, config);
  read_experts(reader, family, config);
  read_attention_bias(reader, family, config);
  config.rms_norm_eps = reader.number("rms_norm_eps", 0, 1, family.experts == ExpertKeys::kMixtral ? 1e-5 : 1e-6);
  config.rope = read_rope(reader, family);
  config.no_rope_layers = read_no_rope_layers(reader, config);
  read_window(reader, family, config);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  config.max_position_embeddings =
      reader.integer("max_position_embeddings", 1, INT32_MAX, config.max_position_embeddings);
  config.initializer_range = reader.number("initializer_range", 0, 1e3, 0.02);
  read_tokens(reader, config);
  for (const std::string& key : find_unknown_keys(object))
    config.warnings.push_back("config.json: key " + io::in_quotes(key) + " is not known and was ignored");
  reader.finish(origin);
  return config;
}

DecoderConfig read_decoder_config(const std::filesystem::path& path) {
  const std::filesystem::path file = std::filesystem::is_directory(path) ? path / "config.json" : path;
  io::JsonLimits limits;
  limits.kind = io::ErrorKind::kModel;
  return parse_decoder_config(io::read_json_file(file, limits), io::in_quotes(file.string()));
}

}  // namespace fsdp::models
