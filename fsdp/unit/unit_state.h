#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/group/grad_scale.h"
#include "fsdp/group/parameter_group.h"
#include "fsdp/unit/ignored_gradients.h"
#include "fsdp/unit/options.h"

namespace fsdp {

class Context;

// For which pass a unit's UnusedUnit::kZeros companions have been gathered.
enum class Offer { kNone, kForForward, kForBackward };

// One unit: the groups of one module's parameters and how they are to be treated. Owned by the hooks of its parameters,
// so it lives as long as they do. Data only; the Context acts on it.
class UnitState {
 public:
  UnitState(std::shared_ptr<Context> owner, std::string unit_name);
  ~UnitState();
  UnitState(const UnitState&) = delete;
  UnitState& operator=(const UnitState&) = delete;

  UnitState& root();
  // This unit and all below it, parents first.
  std::vector<UnitState*> subtree();

  // All groups readable and up to date.
  bool current() const;
  // No gradient of this unit is outstanding in the running backward.
  bool settled() const;
  // A forward read a parameter that needs no gradient: the backward may read it when all gradients have arrived.
  bool read_without_gradient() const;
  // Some of its parameters have a gradient in the running backward, or should have one.
  bool took_part() const;
  // The nearest unit around it that has parameters, or null.
  const UnitState* enclosing() const;
  bool syncs_gradients() const { return requires_sync && no_sync_depth == 0; }
  // On the groups there are now. COLLECTIVE over the shard axis if a group size is new.
  void set_reshard_after_forward(ReshardAfterForward reshard);
  // Gradients are to be added up over the replicas now.
  ReduceReach reduce_reach() const;
  // What a gradient is multiplied with.
  ReductionFactors reduction_factors() const;
  // Bytes of the gathered weights that come and go (groups that rest), and how many of them are in memory now.
  int64_t released_bytes() const;
  int64_t gathered_bytes() const;

  // The observer knows the gradients that there are now.
  void watch_main_grads();

  std::weak_ptr<UnitState> self;
  std::shared_ptr<Context> context;
  std::string name;  // dotted name of the module within its root; "root" for a root
  int id = 0;        // position among the units of the context
  UnitState* parent = nullptr;
  std::shared_ptr<UnitState> held_parent;  // a parent without parameters has no hooks that own it; its children do
  std::vector<UnitState*> children;
  std::vector<std::shared_ptr<ParameterGroup>> groups;
  std::vector<const c10::StorageImpl*> watched_main_grads;  // of each group; null: none
  std::vector<const void*> modules;  // that it was made of; for comparison only, they may be gone
  bool names_by_position = false;    // of several modules, in no enclosing one yet: "0.weight"
  std::vector<at::Tensor> buffers;   // of the modules and all below them, where they are kept equal
  WeakTensors averaged;              // ignored parameters whose gradients become those of all ranks

  Precision precision;
  UnusedUnit unused = UnusedUnit::kSkip;
  BufferSync buffer_sync = BufferSync::kPerRank;
  WeightWrites writes = WeightWrites::kRefused;
  bool reshard_after_forward = true;
  bool reshard_after_backward = true;
  bool requires_sync = true;
  bool requires_all_reduce = true;
  ReduceTiming replica_reduce = ReduceTiming::kLastMicrobatch;
  bool last_microbatch = true;
  int no_sync_depth = 0;
  int full_scopes = 0;   // FullParameters that hold it unsharded
  int write_scopes = 0;  // those of them that write back
  GradScale scale;       // kPerToken: with the tokens of all ranks
  int num_ranks = 1;     // whose gradients are added up

  StreamPoint left;             // on a device: where the program stopped computing with it, until it comes back
  bool had_gradients = false;   // in the running backward
  bool offered = false;         // UnusedUnit::kZeros: gathered for a forward whose backward comes
  Offer offers = Offer::kNone;  // to units that it encloses
  double waited_ms = 0;         // for its gathers and reductions, since the start
};

}  // namespace fsdp
