#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "fsdp/schedule/turns.h"
#include "plan/call_ledger.h"
#include "plan/group.h"
#include "plan/setup.h"

namespace fsdp::plan {

// Which weights are gathered at each point of a step: carries out what schedule::Turns decides, as
// fsdp/unit/context.cpp does, on bytes instead of tensors. Units are numbers; the last is the root, everybody's
// ancestor, and some blocks are within others.
class WeightWalk : private schedule::UnitWeights {
 public:
  WeightWalk(const PlannedModel& model, const std::vector<std::vector<GroupPlan>>& units, const Setup& setup,
             Slabs& slabs, CallLedger& calls);

  int root() const { return static_cast<int>(units_.size()) - 1; }
  // An optimizer wrote the weights that train.
  void begin_step();
  // `expected`: by unit, whether this backward brings its gradients.
  void begin_backward(const std::vector<bool>& expected);
  // Something reads it.
  void touch(int id);
  // Weights stay when a backward is done with them.
  void hold(bool holds) { holds_ = holds; }
  void end_backward();
  // All gradients of a unit have come. Before Turns hears of it.
  void note_gradients_complete(int id) { unit(id).has_all_gradients = true; }
  schedule::Turns& turns() { return turns_; }

  int64_t gathered_bytes() const { return gathered_.bytes(); }
  int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = gathered_.bytes(); }

 private:
  struct GroupState {
    const GroupPlan* plan;
    bool current = false;  // unsharded, and no optimizer wrote since
    bool unsharding = false;
    int64_t arriving = 0;  // bytes of fp8 numbers, in the meantime
    bool has_forward_shard = false;
    bool replicas_gathered = false;
  };
  struct UnitState {
    std::vector<GroupState> groups;
    bool has_frozen = false;
    int64_t released_bytes = 0;
    bool has_all_gradients = false;  // in this backward
  };

  UnitState& unit(int id) { return units_[static_cast<size_t>(id)]; }
  const UnitState& unit(int id) const { return units_[static_cast<size_t>(id)]; }
  bool current(int id) const override;
  int64_t bytes_to_gather(int id) const override { return current(id) ? 0 : unit(id).released_bytes; }
  int gathers_in_flight(int id) const override;
  bool may_reshard(int id, schedule::TurnEnd end) const override;
  void start_gather(int id, schedule::Cause cause) override;
  void finish_gather(int id) override;
  void reshard(int id, schedule::After after) override;
  void count_gather(GroupState& group);
  void finish_gather(GroupState& group);
  void forget_forward_shard(GroupState& group);
  void count_peak() { peak_ = std::max(peak_, gathered_.bytes()); }

  bool holds_ = false;
  bool reshards_after_forward_;
  schedule::Turns turns_;
  Holding gathered_;
  CallLedger& calls_;
  std::vector<UnitState> units_;
  int64_t peak_ = 0;
};

}  // namespace fsdp::plan
