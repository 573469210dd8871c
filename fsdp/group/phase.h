#pragma once

#include "fsdp/base/check.h"

namespace fsdp {

// Phases of a group's weights.
enum class WeightPhase { kResting, kUnsharding, kUnsharded };
// Phases of a group's gradients: nothing here, collected on this rank, on their way to the main grad.
enum class GradPhase { kEmpty, kCollecting, kReducing };

const char* name(WeightPhase phase);
const char* name(GradPhase phase);

// The table of transitions; everything that is not in it is a mistake of ours.
bool is_legal(WeightPhase from, WeightPhase to);
bool is_legal(GradPhase from, GradPhase to);

// A phase that can only change as the table allows.
template <class Phase>
class PhaseOf {
 public:
  explicit PhaseOf(Phase initial) : value_(initial) {}
  Phase value() const { return value_; }
  void change_to(Phase next) {
    FSDP_ASSERT(is_legal(value_, next), "phase ", name(value_), " -> ", name(next));
    value_ = next;
  }

 private:
  Phase value_;
};

}  // namespace fsdp
