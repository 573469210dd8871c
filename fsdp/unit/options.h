#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "fsdp/layout/planner.h"
#include "fsdp/precision/precision.h"
#include "fsdp/schedule/static_order.h"
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

// Everything fully_shard() can be told. The defaults suit a 3B model on 8 devices.
struct ShardOptions {
  Strategy strategy = Strategy::kOptimGradsParams;
  // Free the gathered weights between forward and backward; unset: what the strategy says.
  std::optional<bool> reshard_after_forward;
  Precision precision;
  LayoutOptions layout;
  InitialWeights initial_weights = InitialWeights::kVerify;
  // These stay as they are: not sharded, not gathered, their gradients not reduced.
  std::vector<at::Tensor> ignored_parameters;
  schedule::StaticOrderOptions schedule;
};

}  // namespace fsdp
