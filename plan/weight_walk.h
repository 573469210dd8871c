#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/schedule/static_order.h"
#include "plan/call_ledger.h"
#include "plan/group.h"
#include "plan/setup.h"

namespace fsdp::plan {

// Which weights are gathered at each point of a step: what fsdp/unit/context.cpp does on every touch, with the same
// schedule::StaticOrder, on bytes instead of tensors. Units are numbers; the last is the root, everybody's ancestor.
class WeightWalk {
 public:
  WeightWalk(const std::vector<std::vector<GroupPlan>>& units, const Setup& setup, Slabs& slabs);

  int root() const { return static_cast<int>(units_.size()) - 1; }
  // An optimizer wrote the weights that train.
  void begin_step();
  void begin_pass(schedule::Pass pass);
  void end_backward();
  // The computation moves on to a unit.
  void visit(int id, CallLedger& calls);
  // All its gradients have come, and are on their way if they are to be.
  void note_gradients_complete(int id, CallLedger& calls);
  void finish_in_backward(int id);

  int64_t gathered_bytes() const { return gathered_; }
  int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = gathered_; }

 private:
  enum class After { kUse, kForward };
  struct GroupState {
    const GroupPlan* plan;
    bool current = false;  // unsharded, and no optimizer wrote since
    bool unsharding = false;
    bool has_forward_shard = false;
    bool replicas_gathered = false;
  };
  struct UnitState {
    std::vector<GroupState> groups;
    bool prefetched = false;
    bool has_all_gradients = false;  // in this backward
    int64_t last_use = -1;

    bool current() const;
    bool trains() const;
    bool has_frozen() const;
    int64_t released_bytes() const;
  };

  UnitState& unit(int id) { return units_[static_cast<size_t>(id)]; }
  std::vector<int> units_ahead() const;
  void reshard_others(int touched, const std::vector<int>& ahead);
  void prefetch(const std::vector<int>& ahead, CallLedger& calls);
  int num_gathers_in_flight();
  void start_unshard(int id, CallLedger& calls);
  void count_gather(GroupState& group, CallLedger& calls);
  void finish_unshard(GroupState& group);
  void forget_forward_shard(GroupState& group);
  void reshard(int id, After after);
  void take(int64_t bytes);
  void give_back(int64_t bytes);
  void count_peak() { peak_ = peak_ > gathered_ ? peak_ : gathered_; }

  const Setup& setup_;
  RankGroups groups_;
  bool reshards_after_forward_;
  schedule::StaticOrder order_;
  Slabs& slabs_;
  std::vector<UnitState> units_;
  std::vector<int> live_;  // units whose weights are gathered or on their way, and may be freed
  bool in_backward_ = false;
  int64_t transitions_ = 0;
  int64_t gathered_ = 0;
  int64_t peak_ = 0;
};

}  // namespace fsdp::plan
