#pragma once

#include <filesystem>
#include <memory>

#include "io/base/weight_source.h"

namespace fsdp::io {

// Of a checkpoint of ours the tensors below "model/", named without it; config.json and tokenizer as `fsdp train`
// stores them. Throws Error(kModel) if the folder is none.
std::unique_ptr<WeightSource> open_checkpoint_source(const std::filesystem::path& folder);

}  // namespace fsdp::io
