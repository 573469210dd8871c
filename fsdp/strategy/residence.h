#pragma once

#include "fsdp/strategy/strategy.h"

namespace fsdp {

// How the full parameters of a group live between uses.
enum class Residence {
  kAliased,     // the unsharded buffer is the main weight itself: nothing to gather, nothing to free
  kPersistent,  // always in memory, brought up to date after an optimizer step
  kReleased,    // memory only while unsharded
  kShared,      // in memory that all ranks of the host share: unsharded is a matter of versions (group/host_weights.h)
};

// Where the main weight of a group is and what it is computed with: what, beside the strategy, decides its residence.
struct WeightSituation {
  bool computed_in_place;  // this rank has all of the main weight, and no copy is asked for
  bool same_dtype;         // the weights are computed with in the main weight's dtype
  bool one_copy_per_host;  // all ranks of the shard group are on one host and share gathered weights
};

Residence choose_residence(const StrategyTraits& traits, const WeightSituation& situation);

}  // namespace fsdp
