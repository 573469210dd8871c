#include "plan/weight_walk.h"

#include <algorithm>
#include <utility>

namespace fsdp::plan {

WeightWalk::WeightWalk(const PlannedModel& model, const std::vector<std::vector<GroupPlan>>& units, const Setup& setup,
                       Slabs& slabs, CallLedger& calls)
    : reshards_after_forward_(setup.reshards()), turns_(setup.schedule, *this), gathered_(slabs), calls_(calls) {
  for (const auto& plans : units) {
    turns_.add_unit();
    UnitState& unit = units_.emplace_back();
    for (const GroupPlan& plan : plans) {
      GroupState& group = unit.groups.emplace_back();
      group.plan = &plan;
      group.current = plan.residence == Residence::kAliased;
      unit.has_frozen = unit.has_frozen || !plan.trains;
      unit.released_bytes += plan.released();
    }
  }
  for (int block = 0; block < root(); ++block) {
    const int64_t within = model.blocks[static_cast<size_t>(block)].within;
    turns_.set_parent(block, within < 0 ? root() : static_cast<int>(within));
  }
}

void WeightWalk::begin_step() {
  for (UnitState& unit : units_) {
    for (GroupState& group : unit.groups) {
      if (!group.plan->trains || group.plan->residence == Residence::kAliased) continue;
      group.current = false;
      group.replicas_gathered = false;
    }
  }
}

void WeightWalk::begin_backward(const std::vector<bool>& expected) {
  turns_.begin_backward();
  for (size_t i = 0; i < units_.size(); ++i) units_[i].has_all_gradients = !expected[i];
}

// Context::follow().
void WeightWalk::touch(int id) {
  if (!turns_.is_inside(id) || !current(id)) turns_.move_to(id);
}

// Context::rest_all().
void WeightWalk::end_backward() {
  turns_.leave();
  for (int id = 0; id <= root(); ++id) {
    if (!holds_ || turns_.is_prefetched(id)) reshard(id, schedule::After::kUse);
    for (GroupState& group : unit(id).groups) forget_forward_shard(group);
  }
  turns_.end_backward();
}

// ---- for Turns

bool WeightWalk::current(int id) const {
  const auto& groups = unit(id).groups;
  return std::all_of(groups.begin(), groups.end(), [](const GroupState& group) { return group.current; });
}

int WeightWalk::gathers_in_flight(int id) const {
  const auto& groups = unit(id).groups;
  return static_cast<int>(
      std::count_if(groups.begin(), groups.end(), [](const GroupState& group) { return group.unsharding; }));
}

bool WeightWalk::may_reshard(int id, schedule::TurnEnd end) const {
  if (end == schedule::TurnEnd::kForward) return reshards_after_forward_;
  if (holds_) return false;
  if (end == schedule::TurnEnd::kGradients) return !unit(id).has_frozen;
  return unit(id).has_all_gradients;
}

void WeightWalk::start_gather(int id, schedule::Cause) {
  const int64_t calls_before = calls_.gathers;
  for (GroupState& group : unit(id).groups) {
    if (group.current || group.unsharding) continue;
    gathered_.take(group.plan->released());
    if (group.plan->gathers() && !group.has_forward_shard) gathered_.take(group.arriving = group.plan->arriving);
    group.unsharding = true;
    if (group.plan->gathers()) count_gather(group);
  }
  count_peak();
  if (calls_.gathers > calls_before) turns_.note_gather(id);
  if (unit(id).released_bytes > 0) turns_.note_live(id);
}

void WeightWalk::finish_gather(int id) {
  for (GroupState& group : unit(id).groups) finish_gather(group);
}

// ParameterGroup::reshard() and reshard_to_forward_group().
void WeightWalk::reshard(int id, schedule::After after) {
  for (GroupState& group : unit(id).groups) {
    finish_gather(group);
    if (group.plan->residence != Residence::kReleased || !group.current) continue;
    if (after == schedule::After::kForward && group.plan->forward_shard > 0) {
      gathered_.take(group.plan->forward_shard);
      group.has_forward_shard = true;
    }
    gathered_.give_back(group.plan->unsharded);
    group.current = false;
  }
  count_peak();
  turns_.note_reshard(id);
}

// ---- one group

// ParameterGroup::gather_from_shards() and gather_from_forward_group().
void WeightWalk::count_gather(GroupState& group) {
  constexpr auto kGather = CollectiveKind::kGather;
  constexpr auto kWeights = CollectiveLoad::kWeights;
  const GroupPlan& plan = *group.plan;
  if (group.has_forward_shard) {
    calls_.gathers += 1;
    calls_.add({kGather, CollectiveAxis::kForwardGroup, kWeights, plan.ranks.forward, plan.of_experts},
               plan.forward_shard, plan.ranks.forward.received(plan.unsharded));
    return;
  }
  const int64_t from_shards = plan.copies_whole ? plan.travelling() : plan.ranks.shard.received(plan.travelling());
  const bool asks_replicas = plan.replica_gather_shard > 0 && !group.replicas_gathered;
  if (from_shards == 0 && !asks_replicas) return;  // the only shard there is, and up to date
  calls_.gathers += 1;
  if (from_shards > 0)
    calls_.add({kGather, CollectiveAxis::kShard, kWeights, plan.ranks.shard, plan.of_experts}, plan.gather_shard,
               from_shards);
  if (!asks_replicas) return;
  group.replicas_gathered = true;
  calls_.add({kGather, CollectiveAxis::kReplicate, kWeights, plan.ranks.replicate, plan.of_experts},
             plan.replica_gather_shard, plan.ranks.replicate.received(plan.gather_shard));
}

void WeightWalk::finish_gather(GroupState& group) {
  if (!group.unsharding) return;
  group.unsharding = false;
  group.current = true;
  gathered_.give_back(std::exchange(group.arriving, 0));
  forget_forward_shard(group);
}

void WeightWalk::forget_forward_shard(GroupState& group) {
  if (group.has_forward_shard) gathered_.give_back(group.plan->forward_shard);
  group.has_forward_shard = false;
}

}  // namespace fsdp::plan
