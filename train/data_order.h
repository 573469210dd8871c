#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::train {

// In which order training consumes sequences: an endless row of epochs, each of which visits every sequence once, in
// its own order (Shuffle). A pure function of seed and place: the same for any number of ranks, and a resumed run goes
// on where it stopped.
class DataOrder {
 public:
  DataOrder(uint64_t seed, int64_t num_sequences) : seed_(seed), num_sequences_(num_sequences) {}

  // Indices of the sequences at places position .. position + count - 1.
  std::vector<int64_t> sequences(int64_t position, int64_t count) const;

 private:
  uint64_t seed_;
  int64_t num_sequences_;
};

}  // namespace fsdp::train
