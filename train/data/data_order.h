#pragma once

#include <cstdint>
#include <vector>

#include "train/data/mixture.h"

namespace fsdp::train {

// In which order training consumes sequences: an endless row. Of one source it is a row of epochs, each of which visits
// every sequence once, in its own order (Shuffle); several are mixed by their weights (MixtureOrder), each with epochs
// of its own. A pure function of seed and place: the same for any number of ranks, and a resumed run goes on where it
// stopped.
class DataOrder {
 public:
  // One source.
  DataOrder(uint64_t seed, int64_t num_sequences) : DataOrder(seed, {num_sequences}, {1}) {}
  // Several: the sequences of each, all at least 1, and its weight. The indices of a source follow those of the one
  // before.
  DataOrder(uint64_t seed, std::vector<int64_t> num_sequences, const std::vector<double>& weights);

  // Indices of the sequences at places position .. position + count - 1.
  std::vector<int64_t> sequences(int64_t position, int64_t count) const;

  const MixtureOrder& mixture() const { return mixture_; }

 private:
  uint64_t seed_;
  std::vector<int64_t> num_sequences_;
  std::vector<int64_t> first_index_;
  MixtureOrder mixture_;
};

}  // namespace fsdp::train
