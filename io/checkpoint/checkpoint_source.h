#pragma once

#include <filesystem>
#include <memory>

#include "io/base/weight_source.h"

namespace fsdp::io {

enum class CheckpointWeights {
  kTrained,
  kAveraged,  // those below "ema/average/", and of what has no average, because it is frozen, the trained ones
};

// Of a checkpoint of ours the tensors below "model/", named without it; config.json and tokenizer as `fsdp train`
// stores them. Weights that schedule_free trains are their average, as the run gives them away. Throws Error(kModel) if
// the folder is none, or has no averages where they are asked for.
std::unique_ptr<WeightSource> open_checkpoint_source(const std::filesystem::path& folder,
                                                     CheckpointWeights weights = CheckpointWeights::kTrained);

}  // namespace fsdp::io
