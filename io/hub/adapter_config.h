#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::io {

// Files of an adapter folder of peft, and how the names in it begin.
inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

// What adapter_config.json of peft says about a LoRA adapter.
struct AdapterConfig {
  // Of B A in W + scale() B A: alpha / rank, or alpha / sqrt(rank) with `use_rslora`.
  double scale() const;

  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;
  std::vector<std::string> targets;  // linear maps by the last part of their name; empty: said in another way
  std::string base_model;            // where the base was found; for people
  bool divides_by_root = false;      // "use_rslora"
  bool has_magnitudes = false;       // "use_dora"
  bool holds_part_of_base = false;   // "init_lora_weights": "pissa": only for the base that it left
};

// Throws Error(kModel) with everything in it that would change what is computed and is not supported. Unknown keys that
// are null, false or empty are ignored; `origin` names the file in messages.
AdapterConfig parse_adapter_config(const nlohmann::json& json, const std::string& origin);

// What peft reads. parse_adapter_config() gives `config` back.
nlohmann::json to_peft(const AdapterConfig& config);

}  // namespace fsdp::io
