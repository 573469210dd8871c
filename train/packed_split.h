#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/token_shards.h"

namespace fsdp::train {

// One training sequence: what the model reads, and what it shall predict at each place.
struct Example {
  std::vector<int32_t> inputs;          // [sequence_length]
  std::vector<int64_t> targets;         // [sequence_length]; kNoTarget: nothing is predicted there
  std::vector<int64_t> segment_starts;  // positions where a document (or padding) starts; the first is 0
};

inline constexpr int64_t kNoTarget = -100;

// A split of a data set as sequences of equal length: documents packed one after another. Sequence i reads tokens
// [i*L, (i+1)*L) and predicts the token after each, except across the start of a document. The last sequence is filled
// up with padding that predicts nothing. Const calls are thread-safe.
class PackedSplit {
 public:
  PackedSplit(io::TokenDataset dataset, int64_t sequence_length);

  int64_t num_sequences() const { return num_sequences_; }
  int64_t sequence_length() const { return sequence_length_; }
  const io::TokenDataset& dataset() const { return dataset_; }

  // Number of predicted tokens of a sequence, from the index alone.
  int64_t num_targets(int64_t sequence) const;
  // The same, summed.
  int64_t num_targets(const std::vector<int64_t>& sequences) const;

  Example read(int64_t sequence) const;

 private:
  int64_t num_inputs(int64_t sequence) const;

  io::TokenDataset dataset_;
  int64_t sequence_length_;
  int64_t num_sequences_;
};

}  // namespace fsdp::train
