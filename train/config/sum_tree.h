#pragma once

#include <cstdint>
#include <optional>

#include "fsdp/strategy/sum_order.h"
#include "train/config/config.h"

namespace fsdp::train {

// How gradients are added up: train.world_invariant.
SumOrder sum_order(const TrainConfig& config);

// Sequences of each forward and backward of one of `ranks` ranks.
int64_t microbatch_sequences(const TrainConfig& config, int64_t ranks);

// With train.world_invariant: which microbatch of a step each rank has; else nothing, and each has a contiguous part.
// The batch must be made of whole microbatches, equally many on each rank. Throws Error(kUsage) for a world that would
// add up in another order than the others, with the numbers of ranks that do not.
std::optional<SumTreeOrder> sum_tree_of(const Config& config, int64_t ranks);

}  // namespace fsdp::train
