#pragma once

#include <filesystem>
#include <memory>

#include "io/base/weight_source.h"

namespace fsdp::io {

// A folder of DCP (it has `.metadata`), a checkpoint of ours (`manifest.json`; of its tensors those below "model/",
// named without it; config.json and tokenizer as `fsdp train` stores them), a folder or file of Hugging Face, or an
// adapter folder of peft. Throws Error(kModel) for anything else.
std::unique_ptr<WeightSource> open_weight_source(const std::filesystem::path& path);

}  // namespace fsdp::io
