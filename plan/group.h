#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fsdp/layout/planner.h"
#include "fsdp/strategy/residence.h"
#include "plan/model.h"
#include "plan/setup.h"

namespace fsdp::plan {

// Ranks that talk to each other, and where they are: groups of `per_node` on `nodes` nodes.
struct RankGroup {
  int64_t size = 1;
  int64_t per_node = 1;
  int64_t nodes = 1;

  // What one of the group's ranks receives when `bytes` are gathered or reduce-scattered.
  int64_t received(int64_t bytes) const { return bytes / size * (size - 1); }
  bool operator==(const RankGroup&) const = default;
};

// `size` ranks, `stride` apart, of nodes with `node_size` ranks each.
RankGroup rank_group(int64_t size, int64_t stride, int64_t node_size);

// The groups of a setup, as the runtime makes them (fsdp/unit/fully_shard.cpp, make_links).
struct RankGroups {
  RankGroup shard;      // that hold the shards; no_shard: all ranks
  RankGroup replicate;  // that hold the same shards, where there are several
  RankGroup forward;    // between which weights stay sharded from forward to backward, where smaller than `shard`

  bool has_replicas() const { return replicate.size > 1; }
  bool has_forward_group() const { return forward.size > 1; }
};
RankGroups rank_groups(const Setup& setup);

// The buffers of one parameter group on one rank, in bytes: what ParameterGroup and GradientBuffers of the runtime hold
// for parameters of one unit that share dtype and trainability.
struct GroupPlan {
  size_t num_tensors = 0;
  int64_t numel = 0;
  bool trains = true;
  std::shared_ptr<const layout::FlatLayout> layout;  // over the ranks of RankGroups::shard
  Residence residence = Residence::kReleased;
  RankGroups ranks;
  bool of_experts = false;
  bool copies_whole = false;  // this rank has every shard and copies them: WholeShard::kCopied

  // At rest. The main grad comes with the first backward, the optimizer's state with its first step.
  int64_t main_weight = 0;
  int64_t model_weight = 0;
  int64_t main_grad = 0;
  int64_t optimizer = 0;
  int64_t padding = 0;  // part of main_weight that belongs to no parameter

  // During a step.
  int64_t unsharded = 0;      // all gathered weights
  int64_t arriving = 0;       // fp8 numbers of a gather that is under way; 0: what arrives is what is computed with
  int64_t forward_shard = 0;  // what stays of them between forward and backward
  int64_t reduce_buffer = 0;  // all gradients on their way; 0: they are collected in the main grad
  int64_t wide_buffer = 0;    // all gradients that wait for a later microbatch; 0: the same as reduce_buffer
  int64_t partial = 0;        // sums of the shard group that wait for the replicas
  int64_t replica_wire = 0;   // those in the reduce dtype, where that differs
  int64_t staging = 0;
  int64_t tree_sum = 0;     // of a microbatch that waits for its neighbour in a tree of sums
  int64_t tree_digits = 0;  // at most so many of them wait

  // What this rank contributes to a collective.
  int64_t gather_shard = 0;
  int64_t reduce_shard = 0;
  int64_t replica_reduce_shard = 0;
  int64_t replica_gather_shard = 0;  // of weights; hybrid_optim

  int64_t averages = 0;  // of the weights, fp32; memory counts them with the optimizer's state

  // That the optimizer reads and writes in a step, in one pass over what rests.
  int64_t optimizer_traffic = 0;

  bool gathers() const { return gather_shard > 0; }
  int64_t travelling() const { return arriving > 0 ? arriving : unsharded; }  // of all shards
  int64_t released() const { return residence == Residence::kReleased ? unsharded : 0; }
};

// Of parameters that share dtype and trainability.
GroupPlan plan_group(std::span<const PlannedParameter> members, const Setup& setup);

enum class UnitRole { kBlock, kRoot };

// Bytes that the optimizer keeps of a parameter that trains.
int64_t state_bytes(Optimizer optimizer, const PlannedParameter& parameter, UnitRole role);

// Splits a unit's parameters as the runtime does, in the module's order, and plans each group.
std::vector<GroupPlan> plan_unit(const PlannedUnit& unit, const Setup& setup);

// The groups of all blocks, and last those of the root. Equal blocks are planned once. Where an optimizer's state lies
// unevenly (has_owners()), it is that of the rank that holds most in all.
std::vector<std::vector<GroupPlan>> plan_units(const PlannedModel& model, const Setup& setup);

}  // namespace fsdp::plan
