#pragma once

#include <string>

#include "train/config/config.h"
#include "train/model/model_choice.h"

namespace fsdp::train {

// What the base of an adapter rests in.
enum class BaseFormat {
  kAsComputed,  // the type that is computed with: bf16, or fp32
  kNf4,         // linear maps of the blocks as NF4 codes with double quantisation, the rest as computed
};

// "bf16" is kAsComputed, the name of what it is in most runs.
BaseFormat parse_base_format(const std::string& name);

// Throws Error(kUsage) if tune.base asks for what does not go with the model or another setting, or the model's weights
// are codes and nothing asks for them. Local.
void check_base_format(const Config& config, const ModelChoice& choice);

}  // namespace fsdp::train
