#pragma once

#include <cstdint>

#include "fsdp/strategy/strategy.h"

namespace fsdp {

// In which order the gradients of a step's microbatches, on all ranks, are added up.
enum class SumOrder {
  kAsTheyCome,  // over the ranks where the strategy reduces each microbatch, then after those before (default)
  // As one binary tree: neighbours in pairs, pairs in pairs. Where ranks read what SumTreeOrder says, the sum has the
  // same bits on any number of ranks that is a power of two. CPU only, and everything that is added up is as wide as
  // the main weight.
  kTree,
};

// Elements of a parameter, from its start, that no border between ranks cuts for the sake of SumOrder::kTree: their
// squares are added up together.
inline constexpr int64_t kTreeBlock = 256;

// Which microbatch of a step each rank has, for trees. Their leaves are the microbatches of the global batch in the
// order of its sequences; what ranks add up together are neighbours there. Pure arithmetic.
class SumTreeOrder {
 public:
  // Ranks as `replicas` groups of `shards` neighbours, each with `microbatches` of a step; all at least 1.
  SumTreeOrder(Strategy strategy, int64_t shards, int64_t replicas, int64_t microbatches);

  int64_t num_leaves() const { return shards_ * replicas_ * microbatches_; }
  // The leaf that is number `micro` of the microbatches of `rank`.
  int64_t leaf_of(int64_t rank, int64_t micro) const;
  // Whether the sums that this world makes are those of the tree over all leaves, as one rank alone makes them.
  bool is_exact() const;

 private:
  bool reduces_each_;
  int64_t shards_, replicas_, microbatches_;
};

}  // namespace fsdp
