#pragma once

#include <memory>

#include "io/base/weight_source.h"

namespace fsdp::models {

// `source` with the names that Hugging Face's files have: experts, whose weights a checkpoint of `fsdp train` holds as
// one tensor, become a tensor each. Any other source comes back as it is.
std::unique_ptr<io::WeightSource> with_stored_names(std::unique_ptr<io::WeightSource> source);

}  // namespace fsdp::models
