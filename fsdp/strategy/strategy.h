#pragma once

#include <string_view>

namespace fsdp {

// How one kind of tensor lies on a mesh axis: whole on every rank, cut into shards, or every rank holds a summand.
enum class Placement { kReplicate, kShard, kPartial };

// Placement of the model weight, of the gradient between microbatches, and of main weight and optimizer state, on one
// mesh axis.
struct PlacementTriple {
  Placement weight;
  Placement gradient;
  Placement optimizer;

  bool operator==(const PlacementTriple&) const = default;
};

// The same on both axes of a mesh.
struct MeshPlacement {
  PlacementTriple replicate;
  PlacementTriple shard;

  bool operator==(const MeshPlacement&) const = default;
};

// What is sharded, and over which mesh axes. The first four are ZeRO-0, 1, 2 and 3 over the axis "shard"; on a mesh
// that also has an axis "replicate" they are repeated over it. The others name what needs both axes.
enum class Strategy {
  kNoShard,
  kOptim,
  kOptimGrads,
  kOptimGradsParams,
  kHybrid,       // ZeRO-3 inside "shard", gradients all-reduced over "replicate"
  kHybridZero2,  // the same, but weights stay gathered from forward to backward
  kHybridOptim,  // like kHybrid, but main weight and optimizer state are sharded over both axes
};

// When full weights are gathered from the shards.
enum class GatherTiming { kNever, kPerStep, kPerForward, kPerForwardAndBackward };

enum class ReduceKind { kAllReduce, kReduceScatter };

// When gradients travel under gradient accumulation.
enum class ReduceTiming { kEveryMicrobatch, kLastMicrobatch };
constexpr bool is_due(ReduceTiming timing, bool last_microbatch) {
  return last_microbatch || timing == ReduceTiming::kEveryMicrobatch;
}

// Which mesh axes a strategy is made for.
enum class MeshNeed { kShardAxis, kShardAndReplicateAxis };

// What the runtime and the planner need to know of a strategy; everything else follows from these values.
struct StrategyTraits {
  bool shards_main_weight;
  GatherTiming gather;
  bool reshard_after_forward;  // the default of ShardOptions::reshard_after_forward
  ReduceKind reduce;
  ReduceTiming reduce_timing;
  bool shards_over_replicas;  // main weight and optimizer state over the replicate axis too
  MeshNeed mesh;
};

MeshPlacement placements(Strategy strategy);
StrategyTraits traits(Strategy strategy);

// The name used in configuration files, logs and checkpoints: "no_shard", ..., "hybrid_optim".
std::string_view name(Strategy strategy);

// Accepts the name and its aliases (ZeRO-3, FULL_SHARD, HSDP, ...) in any case. Throws std::invalid_argument with the
// nearest and all legal names.
Strategy parse_strategy(std::string_view text);

// The strategy with these placements; where a one-axis strategy and a hybrid one have the same, the former. Throws
// std::invalid_argument listing the legal ones.
Strategy strategy_of(MeshPlacement placement);

}  // namespace fsdp
