#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "plan/call_ledger.h"
#include "plan/group.h"
#include "plan/setup.h"

namespace fsdp::plan {

// Whether the microbatch is the last one of its step.
enum class MicrobatchPlace { kInner, kLast };

// Which gradients are collected and on their way at each point of a step: what fsdp/unit/context_backward.cpp and
// fsdp/group/gradient_buffers.cpp do, on bytes instead of tensors.
class GradientWalk {
 public:
  GradientWalk(const std::vector<std::vector<GroupPlan>>& units, const Setup& setup, Slabs& slabs, CallLedger& calls);

  bool trains(int unit) const { return !units_[static_cast<size_t>(unit)].empty(); }
  void begin_microbatch(MicrobatchPlace place) { place_ = place; }
  // The first gradient of a unit arrives: there is a buffer to collect it in.
  void begin_collecting(int unit);
  // The last one has arrived: reduces them, if this microbatch does.
  void finish_collecting(int unit);
  // The end of a backward that brought gradients: reduces what earlier ones left of units that this one did not come
  // to, and waits for all.
  void end_backward();

  int64_t resident_bytes() const { return resident_.bytes(); }
  int64_t peak_on_their_way() const { return peak_; }  // without staging
  void reset_peak() { peak_ = 0; }

 private:
  enum class Phase { kEmpty, kCollecting, kReducing };
  struct GroupState {
    const GroupPlan* plan;
    Phase phase = Phase::kEmpty;
    bool collects_wide = false;
    bool has_partial = false;
    bool has_tree = false;
    bool reaches_replicas = false;  // the reduction on its way
  };

  bool reduces_now() const { return is_due(traits_.reduce_timing, place_ == MicrobatchPlace::kLast); }
  void begin_collecting(GroupState& group);
  void make_room(const GroupState& group);
  void start_reduce(GroupState& group);
  void reduce_over_replicas(GroupState& group);
  void finish_oldest_reduce();

  const Setup& setup_;
  StrategyTraits traits_;
  Holding resident_;
  CallLedger& calls_;
  std::vector<std::vector<GroupState>> units_;  // groups that train
  std::deque<GroupState*> reduces_;             // in flight, oldest first
  MicrobatchPlace place_ = MicrobatchPlace::kLast;
  int64_t peak_ = 0;
};

}  // namespace fsdp::plan
