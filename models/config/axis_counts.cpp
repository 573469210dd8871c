#include "models/config/axis_counts.h"

#include <algorithm>

namespace fsdp::models {

std::string legal_parts(const std::vector<AxisCount>& counts, int64_t most) {
  int64_t largest = 1;
  for (const AxisCount& count : counts) largest = std::max(largest, count.number);
  std::string legal;
  for (int64_t parts = 1; parts <= std::min(largest, most); ++parts) {
    const bool fits =
        std::all_of(counts.begin(), counts.end(), [&](const AxisCount& count) { return count.fits(parts); });
    if (fits) legal += (legal.empty() ? "" : ", ") + std::to_string(parts);
  }
  return legal;
}

bool has_dense_layer(const DecoderConfig& config) {
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (!config.has_experts(layer)) return true;
  }
  return false;
}

}  // namespace fsdp::models
