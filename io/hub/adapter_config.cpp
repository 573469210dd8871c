#include "io/hub/adapter_config.h"

#include <algorithm>
#include <cmath>

#include "io/base/error.h"

namespace fsdp::io {

namespace {

using nlohmann::json;

constexpr int64_t kMostRank = int64_t{1} << 20;
constexpr int kMostTold = 12;  // of what is wrong

// Keys that are read, or that say nothing about what an adapter computes.
constexpr const char* kKnownKeys[] = {
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "base_model_name_or_path",
    "peft_type",
    "use_rslora",
    "use_dora",
    "task_type",
    "inference_mode",
    "init_lora_weights",
    "revision",
    "layers_to_transform",
    "layers_pattern",
    "auto_mapping",
    "peft_version",
    "bias",
    "megatron_core",
    "exclude_modules",
    "runtime_config",
    "loftq_config",
    "qalora_group_size",
};

class Reader {
 public:
  Reader(const json& object, const std::string& origin) : object_(object), origin_(origin) {}

  void object_to(const std::string& key, const std::string& expected) {
    if (++num_objections_ > kMostTold) return;
    const auto found = object_.find(key);
    const std::string got =
        found == object_.end() ? "nothing" : found->dump(-1, ' ', true, json::error_handler_t::replace);
    objections_ +=
        (objections_.empty() ? "" : "; ") + in_quotes(key) + ": got " + in_quotes(got) + ", expected " + expected;
  }
  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  double number(const char* key, double least, double most, double fallback) {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    const double got = value->is_number() ? value->get<double>() : std::nan("");
    if (got >= least && got <= most) return got;
    object_to(key, "a number from " + std::to_string(least) + " to " + std::to_string(most));
    return fallback;
  }
  void finish() {
    if (objections_.empty()) return;
    throw Error(ErrorKind::kModel,
                "[adapter] " + origin_ + ": " + objections_ + ". Merge it in peft and use the model.");
  }

 private:
  const json& object_;
  std::string origin_;
  std::string objections_;
  int num_objections_ = 0;
};

bool says_nothing(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) || value == "";
}

std::vector<std::string> read_targets(const json* value) {
  std::vector<std::string> targets;
  if (value == nullptr || !value->is_array()) return targets;  // an expression; the tensors tell
  for (const json& target : *value) {
    if (target.is_string()) targets.push_back(target.get<std::string>());
  }
  std::sort(targets.begin(), targets.end());
  return targets;
}

}  // namespace

double AdapterConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (divides_by_root ? std::sqrt(r) : r);
}

AdapterConfig parse_adapter_config(const json& object, const std::string& origin) {
  if (!object.is_object()) {
    throw Error(ErrorKind::kModel,
                "[adapter] " + origin + ": got a " + object.type_name() + ", expected a JSON object");
  }
  Reader reader(object, origin);
  const json* type = reader.find("peft_type");
  if (type == nullptr || *type != "LORA") reader.object_to("peft_type", "LORA");
  const json* bias = reader.find("bias");
  if (bias != nullptr && *bias != "none") reader.object_to("bias", "none");
  const json* rank = reader.find("r");
  AdapterConfig config;
  if (rank != nullptr && rank->is_number_integer() && *rank >= 1 && *rank <= kMostRank) {
    config.rank = rank->get<int64_t>();
  } else {
    reader.object_to("r", "a rank from 1 to " + std::to_string(kMostRank));
  }
  config.alpha = reader.number("lora_alpha", -1e9, 1e9, 8);
  config.dropout = reader.number("lora_dropout", 0, 1, 0);
  config.targets = read_targets(reader.find("target_modules"));
  const json* base = reader.find("base_model_name_or_path");
  if (base != nullptr && base->is_string()) config.base_model = base->get<std::string>();
  const json* root = reader.find("use_rslora");
  config.divides_by_root = root != nullptr && *root == true;
  const json* dora = reader.find("use_dora");
  if (dora != nullptr && !dora->is_boolean()) reader.object_to("use_dora", "true or false");
  config.has_magnitudes = dora != nullptr && *dora == true;
  // Some ways to begin (PiSSA, OLoRA, LoftQ, ...) change the base too: read_adapter() knows where it is.
  const json* init = reader.find("init_lora_weights");
  config.holds_part_of_base = init != nullptr && *init == "pissa";
  if (init != nullptr && !init->is_boolean() && *init != "gaussian" && *init != "pissa") {
    reader.object_to("init_lora_weights", "true, false, gaussian or, of a checkpoint with its base, pissa");
  }
  // Ranks by pattern, bias, modules that are saved whole: they all have a key that is neither known nor empty.
  for (const auto& [key, value] : object.items()) {
    const bool known = std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) != std::end(kKnownKeys);
    if (!known && !says_nothing(value)) reader.object_to(key, "null, false or nothing in it");
  }
  reader.finish();
  return config;
}

json to_peft(const AdapterConfig& config) {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", config.base_model},
          {"r", config.rank},
          {"lora_alpha", config.alpha},
          {"lora_dropout", config.dropout},
          {"target_modules", config.targets},
          {"use_rslora", config.divides_by_root},
          {"use_dora", config.has_magnitudes},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", config.holds_part_of_base ? json("pissa") : json(true)},
          {"modules_to_save", nullptr}};
}

}  // namespace fsdp::io
