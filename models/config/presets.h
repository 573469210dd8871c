// Published models by name: their shape, without their weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/decoder_config.h"

namespace fsdp::models {

struct Preset {
  std::string name;       // "smollm3-3b"
  std::string published;  // repository of the published model: "HuggingFaceTB/SmolLM3-3B-Base"
  DecoderConfig config;
};

// All presets, family after family, each from small to large. The values are those of the published config.json.
const std::vector<Preset>& presets();

// The preset of that name, or null.
const Preset* find_preset(const std::string& name);

}  // namespace fsdp::models
