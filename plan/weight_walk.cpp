#include "plan/weight_walk.h"

#include <algorithm>

namespace fsdp::plan {
namespace {

schedule::StaticOrderOptions order_options(const schedule::Schedule& schedule) {
  schedule::StaticOrderOptions options;
  options.forward_depth = schedule.depth_forward();
  options.backward_depth = schedule.depth_backward();
  options.max_bytes = schedule.max_bytes;
  return options;
}

bool contains(const std::vector<int>& list, int id) { return std::find(list.begin(), list.end(), id) != list.end(); }

}  // namespace

bool WeightWalk::UnitState::current() const {
  return std::all_of(groups.begin(), groups.end(), [](const GroupState& group) { return group.current; });
}

bool WeightWalk::UnitState::trains() const {
  return std::any_of(groups.begin(), groups.end(), [](const GroupState& group) { return group.plan->trains; });
}

bool WeightWalk::UnitState::has_frozen() const {
  return std::any_of(groups.begin(), groups.end(), [](const GroupState& group) { return !group.plan->trains; });
}

int64_t WeightWalk::UnitState::released_bytes() const {
  int64_t bytes = 0;
  for (const GroupState& group : groups) bytes += group.plan->released();
  return bytes;
}

WeightWalk::WeightWalk(const std::vector<std::vector<GroupPlan>>& units, const Setup& setup, Slabs& slabs)
    : setup_(setup), groups_(rank_groups(setup)), order_(order_options(setup.schedule)), slabs_(slabs) {
  reshards_after_forward_ = setup.reshards();
  for (const auto& plans : units) {
    UnitState& unit = units_.emplace_back();
    for (const GroupPlan& plan : plans) {
      GroupState& group = unit.groups.emplace_back();
      group.plan = &plan;
      group.current = plan.residence == Residence::kAliased;
    }
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

void WeightWalk::begin_pass(schedule::Pass pass) {
  order_.end_pass();
  order_.begin_pass(pass);
  in_backward_ = pass == schedule::Pass::kBackward;
  if (!in_backward_) return;
  for (UnitState& unit : units_) unit.has_all_gradients = !unit.trains();
}

// Context::rest_all().
void WeightWalk::end_backward() {
  in_backward_ = false;
  for (int id = 0; id <= root(); ++id) {
    reshard(id, After::kUse);
    for (GroupState& group : unit(id).groups) forget_forward_shard(group);
  }
  order_.end_pass();
}

// Context::move_to().
void WeightWalk::visit(int id, CallLedger& calls) {
  order_.visit(id);
  ++transitions_;
  const std::vector<int> ahead = units_ahead();
  reshard_others(id, ahead);
  if (!unit(id).current()) start_unshard(id, calls);
  unit(id).prefetched = false;
  unit(id).last_use = transitions_;
  for (GroupState& group : unit(id).groups) finish_unshard(group);
  if (!in_backward_ || setup_.schedule.backward == schedule::BackwardPrefetch::kPre) prefetch(ahead, calls);
}

std::vector<int> WeightWalk::units_ahead() const {
  if (setup_.schedule.max_bytes == schedule::kUnlimited) return order_.ahead();
  std::vector<int64_t> bytes;
  for (const UnitState& unit : units_) bytes.push_back(unit.current() ? 0 : unit.released_bytes());
  return order_.ahead(bytes);
}

void WeightWalk::reshard_others(int touched, const std::vector<int>& ahead) {
  const bool delays = setup_.schedule.kind == schedule::Kind::kDelayedRelease;
  const std::vector<int> candidates = live_;
  for (const int id : candidates) {
    if (id == touched || id == root() || contains(ahead, id)) continue;
    if (delays && transitions_ - unit(id).last_use <= setup_.schedule.delay) continue;
    const bool may = in_backward_ ? unit(id).has_all_gradients : reshards_after_forward_;
    if (!unit(id).prefetched && !may) continue;
    reshard(id, !in_backward_ && !unit(id).prefetched ? After::kForward : After::kUse);
  }
}

void WeightWalk::prefetch(const std::vector<int>& ahead, CallLedger& calls) {
  const int limit = setup_.schedule.max_gathers_in_flight;
  for (const int id : ahead) {
    if (unit(id).current()) continue;
    if (limit > 0 && num_gathers_in_flight() >= limit) return;
    start_unshard(id, calls);
    unit(id).prefetched = true;
  }
}

int WeightWalk::num_gathers_in_flight() {
  int count = 0;
  for (const int id : live_) {
    for (const GroupState& group : unit(id).groups) count += group.unsharding ? 1 : 0;
  }
  return count;
}

void WeightWalk::start_unshard(int id, CallLedger& calls) {
  for (GroupState& group : unit(id).groups) {
    if (group.current || group.unsharding) continue;
    take(group.plan->released());
    group.unsharding = true;
    if (group.plan->gathers()) count_gather(group, calls);
  }
  count_peak();
  if (unit(id).released_bytes() > 0 && !contains(live_, id)) live_.push_back(id);
}

// ParameterGroup::gather_from_shards() and gather_from_forward_group().
void WeightWalk::count_gather(GroupState& group, CallLedger& calls) {
  constexpr auto kGather = CollectiveKind::kGather;
  constexpr auto kWeights = CollectiveLoad::kWeights;
  const GroupPlan& plan = *group.plan;
  if (group.has_forward_shard) {
    calls.gathers += 1;
    calls.add({kGather, CollectiveAxis::kForwardGroup, kWeights, groups_.forward}, plan.forward_shard,
              groups_.forward.received(plan.unsharded));
    return;
  }
  const int64_t from_shards = plan.copies_whole ? plan.unsharded : groups_.shard.received(plan.unsharded);
  const bool asks_replicas = plan.replica_gather_shard > 0 && !group.replicas_gathered;
  if (from_shards == 0 && !asks_replicas) return;  // the only shard there is, and up to date
  calls.gathers += 1;
  if (from_shards > 0)
    calls.add({kGather, CollectiveAxis::kShard, kWeights, groups_.shard}, plan.gather_shard, from_shards);
  if (!asks_replicas) return;
  group.replicas_gathered = true;
  calls.add({kGather, CollectiveAxis::kReplicate, kWeights, groups_.replicate}, plan.replica_gather_shard,
            groups_.replicate.received(plan.model_weight));
}

void WeightWalk::finish_unshard(GroupState& group) {
  if (!group.unsharding) return;
  group.unsharding = false;
  group.current = true;
  forget_forward_shard(group);
}

void WeightWalk::forget_forward_shard(GroupState& group) {
  if (group.has_forward_shard) give_back(group.plan->forward_shard);
  group.has_forward_shard = false;
}

// ParameterGroup::reshard() and reshard_to_forward_group().
void WeightWalk::reshard(int id, After after) {
  for (GroupState& group : unit(id).groups) {
    finish_unshard(group);
    if (group.plan->residence != Residence::kReleased || !group.current) continue;
    if (after == After::kForward && group.plan->forward_shard > 0) {
      take(group.plan->forward_shard);
      group.has_forward_shard = true;
    }
    give_back(group.plan->unsharded);
    group.current = false;
  }
  count_peak();
  unit(id).prefetched = false;
  std::erase(live_, id);
}

void WeightWalk::note_gradients_complete(int id, CallLedger& calls) {
  unit(id).has_all_gradients = true;
  if (setup_.schedule.backward == schedule::BackwardPrefetch::kPost) prefetch(units_ahead(), calls);
}

void WeightWalk::finish_in_backward(int id) {
  if (setup_.schedule.kind == schedule::Kind::kDelayedRelease || unit(id).has_frozen()) return;
  reshard(id, After::kUse);
}

void WeightWalk::take(int64_t bytes) {
  slabs_.take(bytes);
  gathered_ += bytes;
}

void WeightWalk::give_back(int64_t bytes) {
  slabs_.give_back(bytes);
  gathered_ -= bytes;
}

}  // namespace fsdp::plan
