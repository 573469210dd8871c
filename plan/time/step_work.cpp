#include "plan/time/step_work.h"

#include <stdexcept>

namespace fsdp::plan::time {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument("[step] " + message); }

void expect_at_least(int64_t value, int64_t least, const std::string& field) {
  if (value < least)
    refuse(field + ": got " + std::to_string(value) + ", expected at least " + std::to_string(least) + ".");
}

void check_units(const StepWork& work) {
  if (work.units.empty()) refuse("units: got none, expected at least one.");
  for (size_t i = 0; i < work.units.size(); ++i) {
    const UnitWork& unit = work.units[i];
    const std::string where = "unit '" + unit.name + "', ";
    expect_at_least(unit.gather_bytes, 0, where + "gather_bytes");
    expect_at_least(unit.reduce_bytes, 0, where + "reduce_bytes");
    int above = unit.parent;
    for (size_t depth = 0; above != -1; ++depth) {
      if (above < 0 || static_cast<size_t>(above) >= work.units.size() || depth == work.units.size())
        refuse(where + "parent: got " + std::to_string(unit.parent) +
               ", expected -1 or the index of a unit around it.");
      above = work.units[static_cast<size_t>(above)].parent;
    }
  }
}

void check_passages(const StepWork& work) {
  std::vector<bool> visited(work.units.size(), false);
  for (const Passage& passage : work.passages) {
    if (passage.unit < 0 || static_cast<size_t>(passage.unit) >= work.units.size())
      refuse("passage: got unit " + std::to_string(passage.unit) + ", expected 0 to " +
             std::to_string(work.units.size() - 1) + ".");
    visited[static_cast<size_t>(passage.unit)] = true;
  }
  for (size_t i = 0; i < work.units.size(); ++i) {
    if (!visited[i]) refuse("unit '" + work.units[i].name + "': got no passage, expected at least one.");
  }
}

void check_mesh(const StepWork& work) {
  expect_at_least(work.shard_ranks, 1, "shard_ranks");
  expect_at_least(work.replica_ranks, 1, "replica_ranks");
  expect_at_least(work.tensor_ranks, 1, "tensor_ranks");
  expect_at_least(work.context_ranks, 1, "context_ranks");
  expect_at_least(work.expert_ranks, 1, "expert_ranks");
  if (work.shard_ranks % work.expert_ranks != 0)
    refuse("expert_ranks: got " + std::to_string(work.expert_ranks) + ", expected a divisor of the " +
           std::to_string(work.shard_ranks) + " ranks of the shard axis.");
  expect_at_least(work.ranks_per_node, 1, "ranks_per_node");
  expect_at_least(work.nodes_per_pod, 0, "nodes_per_pod");
  if (!(work.slimming >= 1)) refuse("slimming: got " + std::to_string(work.slimming) + ", expected at least 1.");
  const int in_node = work.ranks_per_node;
  const bool fills_nodes = work.ranks() <= in_node || work.ranks() % in_node == 0;
  if (!fills_nodes)
    refuse("ranks: got " + std::to_string(work.ranks()) + " on nodes of " + std::to_string(in_node) +
           ", expected a multiple of it, or one node at most.");
  const int group = work.shard_ranks * work.tensor_ranks;
  const bool groups_fit = group % in_node == 0 || in_node % group == 0 || work.ranks() <= in_node;
  if (!groups_fit)
    refuse("shard_ranks: got " + std::to_string(group) + " on nodes of " + std::to_string(in_node) +
           ", expected a multiple or a divisor of it.");
  if (traits(work.strategy).mesh == MeshNeed::kShardAndReplicateAxis && work.replica_ranks == 1)
    refuse("strategy " + std::string(name(work.strategy)) +
           ": got 1 replica, expected at least 2. Choose optim_grads_params, or a mesh with replicas.");
}

}  // namespace

void check(const StepWork& work) {
  check_units(work);
  check_passages(work);
  check_mesh(work);
  schedule::check(work.schedule);
  expect_at_least(work.microbatches, 1, "microbatches");
  if (!(work.optimizer_bytes >= 0) || !(work.model_flops >= 0))
    refuse("optimizer_bytes and model_flops: got " + std::to_string(work.optimizer_bytes) + " and " +
           std::to_string(work.model_flops) + ", expected at least 0.");
  if (const auto group = work.reshard_after_forward) {
    if (*group < 1 || work.shard_ranks % *group != 0)
      refuse("reshard_after_forward: got " + std::to_string(*group) + ", expected a divisor of the " +
             std::to_string(work.shard_ranks) + " ranks of the shard axis.");
  }
}

}  // namespace fsdp::plan::time
