#include "train/model/model_choice.h"

#include <algorithm>
#include <filesystem>

#include "fsdp/base/error.h"
#include "fsdp/base/units.h"
#include "io/base/error.h"
#include "io/base/json.h"
#include "train/base/edit_distance.h"
#include "train/config/option_table.h"
#include "train/model/nf4/stored_codes.h"

namespace fsdp::train {
namespace {

namespace fs = std::filesystem;

// What a config.json could not say, the model could not be saved as.
models::DecoderConfig checked(const models::DecoderConfig& model) {
  try {
    return models::parse_decoder_config(models::to_hugging_face(model), "the model made from the keys of [model]");
  } catch (const io::Error& error) {
    throw Error(ErrorCode::kUsage, error.what());
  }
}

models::DecoderConfig inline_model(const ModelConfig& config, int64_t data_vocab_size, int64_t data_eos_id) {
  models::DecoderConfig model = models::family_config(config.family);
  model.vocab_size = config.vocab_size > 0 ? config.vocab_size : data_vocab_size;
  model.hidden_size = config.hidden_size;
  model.intermediate_size = config.ffn_size;
  model.num_hidden_layers = config.layers;
  model.num_attention_heads = config.heads;
  model.num_key_value_heads = config.kv_heads;
  model.head_dim = config.head_dim > 0 ? config.head_dim : config.hidden_size / config.heads;
  model.rms_norm_eps = config.norm_eps;
  model.rope.theta = config.rope_theta;
  model.sliding_window = config.sliding_window;
  model.tie_word_embeddings = config.tie_embeddings;
  model.max_position_embeddings = models::DecoderConfig().max_position_embeddings;
  model.initializer_range = config.init_std;
  if (config.family == "smollm3" && config.nope_interval > 0) {
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      model.no_rope_layers.push_back((layer + 1) % config.nope_interval != 0);
    }
  }
  if (config.family == "mixtral" || config.family == "qwen3_moe") {
    const bool has_own_size = config.family == "qwen3_moe" && config.expert_ffn_size > 0;
    model.experts.count = config.experts;
    model.experts.per_token = config.experts_per_token;
    model.experts.inner_size = has_own_size ? config.expert_ffn_size : config.ffn_size;
    model.experts.balance_loss = config.balance_loss;
  }
  model = checked(model);
  if (data_eos_id >= 0) {
    model.eos_token_ids = {data_eos_id};
  }
  return model;
}

// The keys of a model made here mean nothing beside a preset: better an error than another model than asked for.
void check_preset_alone(const ModelConfig& config) {
  if (!config.path.empty()) {
    throw Error(ErrorCode::kUsage,
                "[model] got both model.path and model.preset, expected one. A preset has no weights: "
                "leave it out to load model.path.");
  }
  if (config.weights == "load") {
    throw Error(ErrorCode::kUsage,
                "[model] model.weights: got load with model.preset, expected random or auto. To load "
                "weights, name their folder in model.path.");
  }
  Config given;
  given.model = config;
  for (const Option& option : option_table()) {
    const bool is_of_preset = option.name == "model.preset" || option.name == "model.weights";
    if (option.section() != "model" || is_of_preset || option.value(given) == option.value(Config())) continue;
    throw Error(ErrorCode::kUsage, "[model] " + option.name + ": got " + option.value(given) +
                                       " with model.preset, expected one or the other. Leave out " + option.name +
                                       ", or take the config.json that `fsdp inspect --preset " + config.preset +
                                       " --json` prints, change it, and name it in model.path.");
  }
}

// `given` where a model has just these layers without rotary embedding, else what would come nearest.
int64_t nope_interval(const models::DecoderConfig& model, int64_t given) {
  bool is_given = true;
  int64_t first = 0;
  for (int64_t layer = 1; layer <= model.num_hidden_layers; ++layer) {
    const bool has_rope = model.has_rope(layer - 1);
    is_given = is_given && has_rope == (given == 0 || layer % given != 0);
    if (!has_rope && first == 0) first = layer;
  }
  return is_given ? given : first;
}

// The keys that would make the model of a config.json.
ModelConfig keys_of(const models::DecoderConfig& model, const ModelConfig& given) {
  ModelConfig keys;
  keys.family = model.model_type;
  keys.vocab_size = model.vocab_size;
  keys.hidden_size = model.hidden_size;
  keys.layers = model.num_hidden_layers;
  keys.heads = model.num_attention_heads;
  keys.kv_heads = model.num_key_value_heads;
  keys.ffn_size = model.intermediate_size;
  keys.tie_embeddings = model.tie_word_embeddings;
  keys.nope_interval = nope_interval(model, given.nope_interval);
  keys.rope_theta = model.rope.theta;
  keys.norm_eps = model.rms_norm_eps;
  keys.init_std = model.initializer_range;
  keys.head_dim = model.head_dim;
  keys.sliding_window = model.sliding_window;
  keys.experts = model.experts.count;
  keys.experts_per_token = model.experts.per_token;
  keys.expert_ffn_size = model.experts.inner_size;
  keys.balance_loss = model.experts.balance_loss;
  return keys;
}

// A run file that describes a model may go on from one of its kind; what would change the model has no effect.
void check_agreement(const ModelConfig& config, const models::DecoderConfig& model, const fs::path& file) {
  Config given, there;
  given.model = config;
  there.model = keys_of(model, config);
  for (const Option& option : option_table()) {
    const bool is_of_path =
        option.name == "model.path" || option.name == "model.preset" || option.name == "model.weights";
    if (option.section() != "model" || is_of_path || option.value(given) == option.value(Config())) continue;
    if (option.value(given) == option.value(there)) continue;
    throw Error(ErrorCode::kUsage, "[model] " + option.name + ": got " + option.value(given) +
                                       " with model.path, expected " + option.value(there) + ", as " +
                                       io::in_quotes(file.string()) + " has it. Leave out " + option.name +
                                       ", or change that file.");
  }
}

fs::path config_file(const fs::path& path) { return fs::is_directory(path) ? path / "config.json" : path; }

// What bitsandbytes adds to a config.json says nothing of the model.
void read_config(const fs::path& file, ModelChoice& choice) {
  io::JsonLimits limits;
  limits.kind = io::ErrorKind::kModel;
  nlohmann::json json = io::read_json_file(file, limits);
  choice.has_codes = is_of_bitsandbytes(json);
  if (choice.has_codes) json.erase("quantization_config");
  choice.config = models::parse_decoder_config(json, io::in_quotes(file.string()));
}

bool has_weights(const fs::path& folder) {
  return fs::exists(folder / "model.safetensors") || fs::exists(folder / "model.safetensors.index.json");
}

}  // namespace

ModelChoice choose_model(const ModelConfig& config, int64_t data_vocab_size, int64_t data_eos_id) {
  ModelChoice choice;
  if (!config.preset.empty()) {
    choice.config = preset_named(config.preset).config;
    check_preset_alone(config);
  } else if (config.path.empty()) {
    choice.config = inline_model(config, data_vocab_size, data_eos_id);
  } else {
    const fs::path file = config_file(config.path);
    read_config(file, choice);
    check_agreement(config, choice.config, file);
    const fs::path folder = file.parent_path();
    if (config.weights == "load" || (config.weights == "auto" && has_weights(folder))) {
      choice.weights = io::ModelFolder::open(folder);
    }
  }
  if (choice.config.vocab_size < data_vocab_size) {
    throw Error(ErrorCode::kUsage,
                "[train] vocabulary: the data set has " + std::to_string(data_vocab_size) + " tokens, the model only " +
                    std::to_string(choice.config.vocab_size) + ". Use a data set of the model's tokenizer" +
                    (config.path.empty() && config.preset.empty() ? ", or model.vocab_size = 0." : "."));
  }
  return choice;
}

const models::Preset& preset_named(const std::string& name) {
  if (const models::Preset* preset = models::find_preset(name)) return *preset;
  const auto& all = models::presets();
  // A name without its end is likelier than one with other letters.
  const auto distance = [&](const models::Preset& preset) {
    return preset.name.starts_with(name) ? 0 : static_cast<int64_t>(edit_distance(name, preset.name));
  };
  const auto nearest =
      std::min_element(all.begin(), all.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  const bool is_like = nearest->name.starts_with(name) || is_near(name, nearest->name);
  throw Error(ErrorCode::kUsage, "[model] unknown preset " + io::in_quotes(name) +
                                     did_you_mean(is_like ? nearest->name : "") +
                                     " `fsdp inspect --presets` lists them.");
}

std::string size_text(const models::DecoderConfig& config) {
  const int64_t parameters = models::num_parameters(config);
  const int64_t active = models::num_active_parameters(config);
  return format_count(parameters) + " parameters" +
         (active < parameters ? " (" + format_count(active) + " of them for a token)" : "") + ", " +
         format_bytes(2 * parameters) + " in bf16, " + format_bytes(4 * parameters) + " in fp32";
}

}  // namespace fsdp::train
