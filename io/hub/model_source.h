#pragma once

#include <filesystem>
#include <memory>

#include "io/base/weight_source.h"

namespace fsdp::io {

// A folder or file of Hugging Face, or an adapter folder of peft. Throws Error(kModel) for anything else.
std::unique_ptr<WeightSource> open_model_source(const std::filesystem::path& path);

// Whether open_model_source() finds weights there.
bool is_model_folder(const std::filesystem::path& path);

}  // namespace fsdp::io
