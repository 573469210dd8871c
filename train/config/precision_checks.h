#pragma once

#include "train/config/config.h"

namespace fsdp::train {

// Throws Error(kUsage) for settings that shard.precision does not go with, each by name and with what would do. Those
// of fp8 are checked with the layers (model/fp8_layers.h).
void check_precision(const Config& config);

// The weights themselves are kept in this recipe, rather than as fp32 main weights: "o3", else nothing. A run goes on
// only from checkpoints of one that kept them likewise.
bool keeps_narrow_weights(const ShardConfig& config);

}  // namespace fsdp::train
