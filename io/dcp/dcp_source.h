#pragma once

#include <filesystem>
#include <memory>

#include "io/base/weight_source.h"

namespace fsdp::io {

// The tensors of a checkpoint of torch.distributed.checkpoint. Throws Error(kModel) if the folder is none.
std::unique_ptr<WeightSource> open_dcp_source(const std::filesystem::path& folder);

}  // namespace fsdp::io
