#pragma once

#include <cstdint>

#include "train/model/parallelize.h"

namespace fsdp::train {

// COLLECTIVE. Ranks that hold the same part of a main weight compare its bits. Throws Error(kInternal), on every rank,
// naming parameter and ranks if they differ: replicas that drift apart are a defect of a machine or of this program.
void compare_replicas(const World& world, const ShardedModel& model, int64_t step);

}  // namespace fsdp::train
