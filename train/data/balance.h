#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::train {

// How the sequences of one global batch are dealt: `num_ranks` ranks with `num_microbatches` of `micro_sequences` each.
struct DealShape {
  int64_t num_ranks = 1;
  int64_t num_microbatches = 1;
  int64_t micro_sequences = 1;

  int64_t num_sequences() const { return num_ranks * num_microbatches * micro_sequences; }
};

// A permutation of the batch, such that ranks have as equal amounts of `work` as their equal numbers of sequences
// allow, and ranks that wait for each other in a microbatch have sequences of like work there: entry (rank *
// num_microbatches + micro) * micro_sequences + k is the index of the k-th sequence of that rank's microbatch. Depends
// on nothing but its arguments. work[i] >= 0, of sequence i of the batch.
std::vector<int64_t> deal_by_work(const std::vector<double>& work, const DealShape& shape);

// (most - least) / mean of what the ranks have; 0 for no work at all.
double imbalance(const std::vector<double>& work, const DealShape& shape, const std::vector<int64_t>& dealt);

}  // namespace fsdp::train
