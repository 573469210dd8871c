// The parameters of a decoder by name and shape, in the order in which the modules register them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/decoder_config.h"

namespace fsdp::models {

struct NamedShape {
  std::string name;  // Hugging Face's: "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;

  bool operator==(const NamedShape&) const = default;
};

// Of block `layer`.
std::vector<NamedShape> block_parameters(const DecoderConfig& config, int64_t layer);

// Of everything around the blocks: embedding, last norm, and the head where it is not tied.
std::vector<NamedShape> outer_parameters(const DecoderConfig& config);

}  // namespace fsdp::models
