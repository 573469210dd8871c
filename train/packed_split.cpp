#include "train/packed_split.h"

#include <algorithm>

namespace fsdp::train {

PackedSplit::PackedSplit(io::TokenDataset dataset, int64_t sequence_length)
    : dataset_(std::move(dataset)),
      sequence_length_(sequence_length),
      num_sequences_(std::max<int64_t>(0, (dataset_.num_tokens() - 1 + sequence_length - 1) / sequence_length)) {}

// Tokens of the sequence that have a successor in the split.
int64_t PackedSplit::num_inputs(int64_t sequence) const {
  return std::min(sequence_length_, dataset_.num_tokens() - 1 - sequence * sequence_length_);
}

int64_t PackedSplit::num_targets(int64_t sequence) const {
  const int64_t inputs = num_inputs(sequence);
  const auto starts = dataset_.document_starts(sequence * sequence_length_ + 1, inputs);
  return inputs - static_cast<int64_t>(starts.size());
}

int64_t PackedSplit::num_targets(const std::vector<int64_t>& sequences) const {
  int64_t sum = 0;
  for (const int64_t sequence : sequences) {
    sum += num_targets(sequence);
  }
  return sum;
}

Example PackedSplit::read(int64_t sequence) const {
  const int64_t first = sequence * sequence_length_;
  const int64_t inputs = num_inputs(sequence);
  std::vector<int32_t> tokens(static_cast<size_t>(inputs) + 1);
  dataset_.read(first, inputs + 1, tokens.data());

  Example example;
  example.inputs.assign(tokens.begin(), tokens.end() - 1);
  example.targets.assign(tokens.begin() + 1, tokens.end());
  example.segment_starts = {0};
  for (const int64_t start : dataset_.document_starts(first + 1, inputs)) {
    example.targets[static_cast<size_t>(start)] = kNoTarget;
    if (start + 1 < inputs) {
      example.segment_starts.push_back(start + 1);
    }
  }
  if (inputs < sequence_length_) {
    example.segment_starts.push_back(inputs);
    example.inputs.resize(static_cast<size_t>(sequence_length_), 0);
    example.targets.resize(static_cast<size_t>(sequence_length_), kNoTarget);
  }
  return example;
}

}  // namespace fsdp::train
