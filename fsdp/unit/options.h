#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "fsdp/buffer/buffer_allocator.h"
#include "fsdp/layout/planner.h"
#include "fsdp/precision/precision.h"
#include "fsdp/schedule/schedule.h"
#include "fsdp/strategy/strategy.h"

namespace fsdp {

// What happens to the weights a model has when it is sharded.
enum class InitialWeights {
  kVerify,     // a digest refuses ranks that start different, and names them (default)
  kBroadcast,  // rank 0's weights go to all
};

// How the flat buffer of a group may be cut: a granule is never split between two ranks.
struct LayoutOptions {
  layout::Granularity granularity = layout::Granularity::kElement;
  int64_t block = 1;  // elements, for Granularity::kBlock
};

// What is left of the gathered weights between forward and backward: true, only this rank's shard; false, all of them;
// n, this rank's part between n neighbouring ranks (those of one host, say), so that the backward gathers inside that
// group. n must divide the size of the shard axis.
using ReshardAfterForward = std::variant<bool, int>;

// Everything fully_shard() can be told. The defaults suit a 3B model on 8 devices.
struct ShardOptions {
  Strategy strategy = Strategy::kOptimGradsParams;
  std::optional<ReshardAfterForward> reshard_after_forward;  // unset: what the strategy says
  // On a mesh with replicas: when gradients are added up over them. Unit::set_requires_all_reduce() can hold them back.
  ReduceTiming replica_reduce = ReduceTiming::kLastMicrobatch;
  Precision precision;
  LayoutOptions layout;
  InitialWeights initial_weights = InitialWeights::kVerify;
  // These stay as they are: not sharded, not gathered, their gradients not reduced.
  std::vector<at::Tensor> ignored_parameters;
  // Of all units of the world; later calls of fully_shard() must agree with the first.
  schedule::Schedule schedule;
  AllocatorOptions allocator;
};

// What all units of a world have in common.
struct ContextOptions {
  schedule::Schedule schedule;
  AllocatorOptions allocator;

  bool operator==(const ContextOptions&) const = default;
};

}  // namespace fsdp
