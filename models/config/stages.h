// Which layers of a decoder a stage of a pipeline has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/decoder_config.h"

namespace fsdp::models {

// Blocks [first, last): those of a stage of a pipeline.
struct BlockRange {
  int64_t first = 0;
  int64_t last = 0;

  bool contains(int64_t block) const { return first <= block && block < last; }
  bool operator==(const BlockRange&) const = default;
};

// At least one block for each of `stages`, at most as many as there are blocks, so that the stage with the most to
// multiply has as little as possible. Embedding and head count as products of their size: the first is only looked up,
// but its weights take the memory and the update of as large a matrix.
std::vector<BlockRange> cut_into_stages(const DecoderConfig& config, int64_t sequence_length, int64_t stages);

// Stages rank, rank + ranks, ... : those of one rank.
std::vector<BlockRange> stages_of_rank(const std::vector<BlockRange>& stages, int rank, int ranks);

// "layers 0-3 | 4-6".
std::string describe(const std::vector<BlockRange>& stages);

}  // namespace fsdp::models
