// Under which names Hugging Face's files have a parameter.
#pragma once

#include <vector>

#include "models/config/decoder_config.h"
#include "models/config/parameter_list.h"

namespace fsdp::models {

// The tensors that make up `parameter`, flattened, one after the other: itself, but for experts, whose weights are one
// parameter here, [experts, out, in], and a tensor or two an expert there. An adapter's parameters are their own.
std::vector<NamedShape> stored_parts(const DecoderConfig& config, const NamedShape& parameter);

}  // namespace fsdp::models
