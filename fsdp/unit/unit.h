#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/device_memory.h"
#include "fsdp/group/all_reduce_hook.h"
#include "fsdp/group/grad_scale.h"
#include "fsdp/unit/options.h"

namespace fsdp {

class UnitState;

// What a Context (all units of one world) did since the last reset_counters(). Local.
struct Counters {
  int64_t gathers = 0;
  int64_t reduces = 0;
  int64_t gather_bytes = 0;      // received by this rank
  int64_t scale_agreements = 0;  // small collectives in which the ranks agreed on scales (Precision::gather)
  int64_t reduce_bytes = 0;      // received by this rank
  double exposed_gather_ms = 0;  // the user's thread waited this long for gathers
  double exposed_reduce_ms = 0;
  int64_t resident_unsharded_bytes = 0;  // gathered weights in memory now
  int64_t peak_unsharded_bytes = 0;      // and at most, since the reset
  int64_t peak_reduce_bytes = 0;         // gradient buffers on their way, at most
  int64_t gradients_in_place = 0;        // written by operators straight into the buffers they are reduced from
  int64_t buffer_allocations = 0;        // how often memory for buffers was taken from the system, since the start
};

// Bytes this rank holds for a root's parameters at rest.
struct RestingBytes {
  int64_t main_weight = 0;
  int64_t model_weight = 0;  // 0 where it aliases the main weight
  int64_t main_grad = 0;
  int64_t padding = 0;  // part of the above that belongs to no parameter
};

class Unit;

// A gather that unshard_async() began.
class UnshardHandle {
 public:
  // Returns when the parameters are readable. Again: no-op.
  void wait();

 private:
  friend class Unit;
  explicit UnshardHandle(std::shared_ptr<UnitState> unit) : unit_(std::move(unit)) {}
  std::shared_ptr<UnitState> unit_;
};

// What fully_shard() made of one module. A cheap handle: copies mean the same unit. Every method may throw an Error
// that happened earlier inside an operator, where it could not be thrown.
class Unit {
 public:
  explicit Unit(std::shared_ptr<UnitState> state) : state_(std::move(state)) {}

  // COLLECTIVE over the shard axis. Makes the parameters of this unit (not of nested ones) readable. They stay so until
  // reshard(), or until the schedule reshards them in a forward or backward.
  void unshard();
  // COLLECTIVE likewise. Begins it and returns. Operators that read the parameters wait, with or without wait(); who
  // takes data_ptr(), or calls torch::save(), before wait() is refused by name. No schedule reshards them before they
  // were read, or the step ends.
  UnshardHandle unshard_async();
  // Local. Frees the gathered parameters of this unit; no-op where they rest or the strategy keeps them.
  void reshard();

  // The setters apply to this unit and all units below it.
  // false: gradients stay on this rank, unsharded, in the accumulate dtype, and are added up (FSDP1's no_sync).
  void set_requires_gradient_sync(bool sync);
  // false: sums of this rank's shard group wait, in the main weight's dtype, for a backward that may take them to the
  // other replicas.
  void set_requires_all_reduce(bool all_reduce);
  // See ReshardAfterForward. COLLECTIVE over the shard axis for a group size that is new.
  void set_reshard_after_forward(ReshardAfterForward reshard);
  // false: gathered weights outlive the backward; they are gathered again only after an optimizer changed them.
  void set_reshard_after_backward(bool reshard);
  // Default: GradScale::mean(). COLLECTIVE over the world for GradScale::per_token(), which adds up the ranks' tokens.
  void set_gradient_scale(const GradScale& scale);
  // GradScale::sum(factor).
  void set_gradient_divide_factor(double factor);
  // Calls `hook` with this rank's part of each sum of gradients over all ranks, before it becomes, or is added to, the
  // leaves' .grad: one call for each group of parameters of one dtype and trainability, on the program's thread (on a
  // device: its current stream, which the sum is ordered before), in the order in which the units' backwards ended.
  // Nothing the hook does is seen as the program's. Not for sums that wait for a backward that takes them to the
  // replicas. Empty: no hook. Local: every rank that has to give the same must set it. What it throws,
  // backward() throws. After: FSDP2's set_all_reduce_hook.
  void set_all_reduce_hook(const AllReduceHook& hook);

  // Gather these, in this order, whenever this unit (not the ones below it) is entered in a forward or backward,
  // instead of what the schedule would gather ahead. Empty: the schedule decides again. Every rank must say the same.
  // Local.
  void prefetch_in_forward(const std::vector<Unit>& units);
  void prefetch_in_backward(const std::vector<Unit>& units);

  // Local. Units, parameters, bytes, padding, recorded order and what is resident, as a table of text.
  std::string describe() const;

  // Of the whole Context / of this unit and all below it. Local.
  Counters counters() const;
  void reset_counters();
  RestingBytes resting_bytes() const;
  // What this unit and all below it hold on the device of their weights; gathered weights, gradients on their way and
  // idle memory are those of the whole Context.
  MemoryCategories memory() const;
  // Elements of the unsharded parameters of this unit and all below it, each distinct parameter once.
  int64_t num_parameters() const;
  int64_t num_units() const;
  // Bytes of the largest gathered unit among this one and all below it.
  int64_t largest_unit_bytes() const;

  const std::shared_ptr<UnitState>& state() const { return state_; }

 private:
  std::shared_ptr<UnitState> state_;
};

}  // namespace fsdp
