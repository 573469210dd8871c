#pragma once

#include <optional>
#include <string>

#include "io/hub/model_folder.h"
#include "models/config/decoder_config.h"
#include "models/config/presets.h"
#include "train/config/config.h"

namespace fsdp::train {

// The model a configuration asks for, and where its weights come from.
struct ModelChoice {
  models::DecoderConfig config;
  std::optional<io::ModelFolder> weights;  // none: drawn at random
  bool has_codes = false;                  // these are NF4 codes as bitsandbytes stores them
};

// `data_vocab_size` and `data_eos_id` are what the data set needs. Throws Error(kUsage) if the vocabularies do not fit
// or keys of [model] contradict each other, io::Error for a model folder that is missing or broken.
ModelChoice choose_model(const ModelConfig& config, int64_t data_vocab_size, int64_t data_eos_id);

// Throws Error(kUsage) naming the nearest preset, if one is near, where there is none of that name.
const models::Preset& preset_named(const std::string& name);

// "3.08B parameters, 5.7 GiB in bf16, 11.5 GiB in fp32"
std::string size_text(const models::DecoderConfig& config);

}  // namespace fsdp::train
