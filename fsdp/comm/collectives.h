#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "fsdp/mesh/mesh.h"

namespace fsdp {

// Small collectives for programs: metrics, agreement, files written by rank 0. Each is COLLECTIVE over the world, runs
// on the calling thread, returns when done, and throws Error(kCommunication) that names the culprit at the deadline.
// None is meant for bulk data.

// Sum over all ranks, in rank order, so every rank holds the same bits. Any shape, any floating or integer dtype.
at::Tensor sum_over_ranks(const World& world, const at::Tensor& value);

// One string from each rank, indexed by rank.
std::vector<std::string> gather_strings(const World& world, const std::string& mine);

// Ranks on hosts of the same name as this one's, ascending.
std::vector<int> ranks_of_this_host(const World& world);

// Rank 0's string, on every rank.
std::string broadcast_string(const World& world, const std::string& mine);

// Returns once every rank has called it. `what` names it in errors.
void barrier(const World& world, const std::string& what);

}  // namespace fsdp
