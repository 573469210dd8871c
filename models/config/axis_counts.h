// What ranks along an axis divide among them: numbers of a model's parts, and which numbers of ranks fit all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/decoder_config.h"

namespace fsdp::models {

struct AxisCount {
  std::string what;
  int64_t number;
  bool may_repeat = false;  // ranks may have the same one, where there are more of them

  bool fits(int64_t parts) const { return number % parts == 0 || (may_repeat && parts % number == 0); }
};

// "1, 2, 4": numbers of ranks up to `most` that all counts fit.
std::string legal_parts(const std::vector<AxisCount>& counts, int64_t most);

// Whether a layer has an MLP of its own in place of experts.
bool has_dense_layer(const DecoderConfig& config);

}  // namespace fsdp::models
