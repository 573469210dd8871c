// What has to be alike on all ranks before they train.
#pragma once

#include "fsdp/mesh/mesh.h"
#include "train/config/config.h"
#include "train/data/packed_split.h"

namespace fsdp::train {

// COLLECTIVE. Ranks that were started with different settings, or that see different data, would wait for each other or
// train on something nobody asked for. Throws AgreedError (kUsage, kData) on all ranks, naming the first that differs
// from rank 0.
void check_ranks_agree(const World& world, const Config& config, const PackedSplit& data);

}  // namespace fsdp::train
