#include "plan/gradient_walk.h"

#include <algorithm>

namespace fsdp::plan {

GradientWalk::GradientWalk(const std::vector<std::vector<GroupPlan>>& units, const Setup& setup, Slabs& slabs,
                           CallLedger& calls)
    : setup_(setup), traits_(traits(setup.strategy)), resident_(slabs), calls_(calls) {
  for (const auto& plans : units) {
    auto& states = units_.emplace_back();
    for (const GroupPlan& plan : plans) {
      if (plan.trains) states.emplace_back().plan = &plan;
    }
  }
}

void GradientWalk::begin_collecting(int unit) {
  for (GroupState& group : units_[static_cast<size_t>(unit)]) begin_collecting(group);
}

// Context::make_room_to_collect().
void GradientWalk::make_room(const GroupState& group) {
  const size_t limit = setup_.schedule.reductions_in_flight();
  while (group.phase == Phase::kReducing || reduces_.size() >= limit) finish_oldest_reduce();
}

// GradientBuffers::begin_collecting().
void GradientWalk::begin_collecting(GroupState& group) {
  if (group.phase == Phase::kCollecting) return;
  make_room(group);
  group.phase = Phase::kCollecting;
  if (!group.has_tree && place_ == MicrobatchPlace::kInner) {
    for (int64_t digit = 0; digit < group.plan->tree_digits; ++digit) resident_.take(group.plan->tree_sum);
    group.has_tree = true;
  }
  group.collects_wide = !reduces_now() && group.plan->wide_buffer > 0;
  resident_.take(group.collects_wide ? group.plan->wide_buffer : group.plan->reduce_buffer);
}

void GradientWalk::finish_collecting(int unit) {
  if (!reduces_now()) return;
  for (GroupState& group : units_[static_cast<size_t>(unit)]) start_reduce(group);
}

// GradientBuffers::make_reduction().
void GradientWalk::start_reduce(GroupState& group) {
  const GroupPlan& plan = *group.plan;
  if (group.phase == Phase::kEmpty) {
    make_room(group);
    resident_.take(plan.reduce_buffer);
  }
  if (group.collects_wide) {
    resident_.take(plan.reduce_buffer);
    resident_.give_back(plan.wide_buffer);
    group.collects_wide = false;
  }
  resident_.take(plan.staging);
  group.phase = Phase::kReducing;
  calls_.reduces += 1;
  if (plan.reduce_buffer > 0) {
    const bool all = traits_.reduce == ReduceKind::kAllReduce;
    calls_.add({all ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter, CollectiveAxis::kShard,
                CollectiveLoad::kGradients, plan.ranks.shard, plan.of_experts},
               plan.reduce_shard, plan.ranks.shard.received(plan.reduce_buffer) * (all ? 2 : 1));
    if (plan.ranks.has_replicas()) reduce_over_replicas(group);
  }
  reduces_.push_back(&group);
  int64_t in_flight = 0;
  for (const GroupState* each : reduces_) in_flight += each->plan->reduce_buffer;
  peak_ = std::max(peak_, in_flight);
}

void GradientWalk::reduce_over_replicas(GroupState& group) {
  const GroupPlan& plan = *group.plan;
  if (!group.has_partial) resident_.take(plan.partial);
  group.has_partial = true;
  group.reaches_replicas = is_due(setup_.replica_reduce, place_ == MicrobatchPlace::kLast);
  if (!group.reaches_replicas) return;
  resident_.take(plan.replica_wire);
  const bool scatters = traits_.shards_over_replicas;
  calls_.add({scatters ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce, CollectiveAxis::kReplicate,
              CollectiveLoad::kGradients, plan.ranks.replicate, plan.of_experts},
             plan.replica_reduce_shard, plan.ranks.replicate.received(plan.reduce_shard) * (scatters ? 1 : 2));
}

// Context::reduce_leftovers(), of ranks whose graphs are alike.
void GradientWalk::end_backward() {
  for (size_t unit = units_.size(); reduces_now() && unit-- > 0;) {
    for (GroupState& group : units_[unit]) {
      const bool has_sums = group.has_partial && is_due(setup_.replica_reduce, place_ == MicrobatchPlace::kLast);
      if (group.phase == Phase::kCollecting || (has_sums && group.phase == Phase::kEmpty)) start_reduce(group);
    }
  }
  while (!reduces_.empty()) finish_oldest_reduce();
}

void GradientWalk::finish_oldest_reduce() {
  GroupState& group = *reduces_.front();
  reduces_.pop_front();
  resident_.give_back(group.plan->reduce_buffer);
  resident_.give_back(group.plan->staging);
  group.phase = Phase::kEmpty;
  if (group.has_tree && place_ == MicrobatchPlace::kLast) {
    for (int64_t digit = 0; digit < group.plan->tree_digits; ++digit) resident_.give_back(group.plan->tree_sum);
    group.has_tree = false;
  }
  if (!group.reaches_replicas) return;
  resident_.give_back(group.plan->replica_wire);
  resident_.give_back(group.plan->partial);
  group.reaches_replicas = group.has_partial = false;
}

}  // namespace fsdp::plan
