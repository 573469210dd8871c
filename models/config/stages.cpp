#include "models/config/stages.h"

#include <algorithm>

namespace fsdp::models {

std::vector<BlockRange> cut_into_stages(const DecoderConfig& config, int64_t sequence_length, int64_t stages) {
  const double end = 6 * static_cast<double>(config.vocab_size) * static_cast<double>(config.hidden_size);
  const double block = (flops_per_token(config, sequence_length) - end) / static_cast<double>(config.num_hidden_layers);
  std::vector<double> costs(static_cast<size_t>(stages), block);
  costs.front() += end;
  costs.back() += end;
  std::vector<int64_t> counts(costs.size(), 1);
  for (int64_t rest = config.num_hidden_layers - stages; rest > 0; --rest) {
    const auto least = static_cast<size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
    costs[least] += block;
    ++counts[least];
  }
  std::vector<BlockRange> ranges;
  int64_t first = 0;
  for (const int64_t count : counts) {
    ranges.push_back({first, first + count});
    first += count;
  }
  return ranges;
}

std::vector<BlockRange> stages_of_rank(const std::vector<BlockRange>& stages, int rank, int ranks) {
  std::vector<BlockRange> own;
  for (auto i = static_cast<size_t>(rank); i < stages.size(); i += static_cast<size_t>(ranks)) own.push_back(stages[i]);
  return own;
}

std::string describe(const std::vector<BlockRange>& stages) {
  std::string text = "layers ";
  for (const BlockRange& stage : stages) {
    text += (&stage == &stages.front() ? "" : " | ") + std::to_string(stage.first) +
            (stage.last - stage.first > 1 ? "-" + std::to_string(stage.last - 1) : "");
  }
  return text;
}

}  // namespace fsdp::models
