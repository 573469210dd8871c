#pragma once

#include <string_view>

namespace fsdp {

// How one kind of tensor lies on a mesh axis: whole on every rank, cut into shards, or every rank holds a summand.
enum class Placement { kReplicate, kShard, kPartial };

// Placement of the model weight, of the gradient between microbatches, and of main weight and optimizer state.
struct PlacementTriple {
  Placement weight;
  Placement gradient;
  Placement optimizer;

  bool operator==(const PlacementTriple&) const = default;
};

// What is sharded over the shard axis, each more than the one before. ZeRO-0, 1, 2 and 3.
enum class Strategy { kNoShard, kOptim, kOptimGrads, kOptimGradsParams };

// When full weights are gathered from the shards.
enum class GatherTiming { kNever, kPerStep, kPerForward, kPerForwardAndBackward };

enum class ReduceKind { kAllReduce, kReduceScatter };

// When gradients travel under gradient accumulation.
enum class ReduceTiming { kEveryMicrobatch, kLastMicrobatch };

// What the runtime and the planner need to know of a strategy; everything else follows from these values.
struct StrategyTraits {
  bool shards_main_weight;
  GatherTiming gather;
  bool reshard_after_forward;  // the default of ShardOptions::reshard_after_forward
  ReduceKind reduce;
  ReduceTiming reduce_timing;
};

PlacementTriple placements(Strategy strategy);
StrategyTraits traits(Strategy strategy);

// The name used in configuration files, logs and checkpoints: "no_shard", "optim", "optim_grads", "optim_grads_params".
std::string_view name(Strategy strategy);

// Accepts the name and its aliases (ZeRO-3, FULL_SHARD, zero3, ...) in any case. Throws std::invalid_argument with the
// nearest and all legal names, or that a hybrid strategy is not in this version.
Strategy parse_strategy(std::string_view text);

// The strategy with these placements. Throws std::invalid_argument listing the legal triples.
Strategy strategy_of(PlacementTriple triple);

}  // namespace fsdp
