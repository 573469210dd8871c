#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::train {

// Which sequences a step trains on. A pure function of seed and step: the same for any number of ranks, and a resumed
// run goes on where it stopped. Each epoch visits every sequence once, in its own order (Shuffle).
class DataOrder {
 public:
  DataOrder(uint64_t seed, int64_t num_sequences, int64_t batch_sequences)
      : seed_(seed), num_sequences_(num_sequences), batch_sequences_(batch_sequences) {}

  // Indices of the global batch of `step`, batch_sequences of them.
  std::vector<int64_t> sequences(int64_t step) const;

 private:
  uint64_t seed_;
  int64_t num_sequences_;
  int64_t batch_sequences_;
};

}  // namespace fsdp::train
