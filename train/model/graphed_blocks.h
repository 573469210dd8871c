// Blocks whose forward and backward are one launch each, for models so small that launching takes longer than
// computing.
#pragma once

#include "fsdp/unit/options.h"
#include "train/config/config.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

// Throws Error(kUsage) where train.cuda_graphs is set and the rest of the configuration does not allow it.
void check_graphs(const Config& config);

// For units whose blocks are to be graphed: gathered weights keep their addresses.
void keep_addresses(ShardOptions& options);

// Of a decoder that is sharded. Batches of packed documents run as they are, for their lengths differ.
void graph_blocks(ShardedModel& model);

}  // namespace fsdp::train
