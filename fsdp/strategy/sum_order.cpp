#include "fsdp/strategy/sum_order.h"

#include <bit>

namespace fsdp {
namespace {

bool is_power_of_two(int64_t number) { return std::has_single_bit(static_cast<uint64_t>(number)); }

}  // namespace

SumTreeOrder::SumTreeOrder(Strategy strategy, int64_t shards, int64_t replicas, int64_t microbatches)
    : reduces_each_(traits(strategy).reduce_timing == ReduceTiming::kEveryMicrobatch),
      shards_(shards),
      replicas_(replicas),
      microbatches_(microbatches) {}

// What a shard group adds up of one microbatch lies side by side where it does so each time; else a rank's own do.
int64_t SumTreeOrder::leaf_of(int64_t rank, int64_t micro) const {
  if (!reduces_each_) return rank * microbatches_ + micro;
  return (rank / shards_ * microbatches_ + micro) * shards_ + rank % shards_;
}

// Each stage adds up whole subtrees if what is below it is a power of two; the topmost may be anything. Stages of ranks
// are powers of two in any case, because a transport may have two of them.
bool SumTreeOrder::is_exact() const {
  const bool is_topmost = reduces_each_ ? replicas_ == 1 : shards_ * replicas_ == 1;
  return is_power_of_two(shards_) && is_power_of_two(replicas_) && (is_topmost || is_power_of_two(microbatches_));
}

}  // namespace fsdp
