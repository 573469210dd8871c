#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "io/weights/adapter.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

// COLLECTIVE over the ranks of the model: its units are gathered, one at a time. Of the maps whose adapters have
// magnitudes (DoRA), by their names: the norms of the base's rows, fp32 [out] on the CPU, the same on every rank.
// REQUIRES: no map is cut, all blocks are here.
std::map<std::string, at::Tensor> row_norms(const ShardedModel& model);

// COLLECTIVE over `world`, which has each element of the model once. Works an adapter into main weights, in place: W +
// scale B A in fp32, rows of the norms that its magnitudes say. Each rank its slices. REQUIRES: the adapter fits.
void work_into_slices(const ShardedModel& model, const World& world, const io::Adapter& adapter);

}  // namespace fsdp::train
