#pragma once

#include <optional>

#include "io/model_folder.h"
#include "models/decoder_config.h"
#include "train/config.h"

namespace fsdp::train {

// The model a configuration asks for, and where its weights come from.
struct ModelChoice {
  models::DecoderConfig config;
  std::optional<io::ModelFolder> weights;  // none: drawn at random
};

// `data_vocab_size` and `data_eos_id` are what the data set needs. Throws Error(kUsage) if the vocabularies do not fit,
// io::Error for a model folder that is missing or broken.
ModelChoice choose_model(const ModelConfig& config, int64_t data_vocab_size, int64_t data_eos_id);

}  // namespace fsdp::train
