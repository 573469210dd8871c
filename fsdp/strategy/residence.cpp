#include "fsdp/strategy/residence.h"

namespace fsdp {

Residence choose_residence(const StrategyTraits& traits, const WeightSituation& situation) {
  if (situation.computed_in_place) return situation.same_dtype ? Residence::kAliased : Residence::kPersistent;
  if (situation.one_copy_per_host) return Residence::kShared;
  return traits.gather == GatherTiming::kPerStep ? Residence::kPersistent : Residence::kReleased;
}

}  // namespace fsdp
