#include "fsdp/group/phase.h"

namespace fsdp {

const char* name(WeightPhase phase) {
  switch (phase) {
    case WeightPhase::kResting:
      return "resting";
    case WeightPhase::kUnsharding:
      return "unsharding";
    case WeightPhase::kUnsharded:
      return "unsharded";
  }
  return "unknown";
}

const char* name(GradPhase phase) {
  switch (phase) {
    case GradPhase::kEmpty:
      return "empty";
    case GradPhase::kCollecting:
      return "collecting";
    case GradPhase::kReducing:
      return "reducing";
  }
  return "unknown";
}

bool is_legal(WeightPhase from, WeightPhase to) {
  switch (from) {
    case WeightPhase::kResting:
      return to == WeightPhase::kUnsharding;
    case WeightPhase::kUnsharding:
      return to == WeightPhase::kUnsharded;
    // Straight back to unsharding: the weights stay in memory and are brought up to date.
    case WeightPhase::kUnsharded:
      return to == WeightPhase::kResting || to == WeightPhase::kUnsharding;
  }
  return false;
}

bool is_legal(GradPhase from, GradPhase to) {
  switch (from) {
    case GradPhase::kEmpty:
      return to == GradPhase::kCollecting;
    // Back to empty: a backward that threw.
    case GradPhase::kCollecting:
      return to == GradPhase::kReducing || to == GradPhase::kEmpty;
    case GradPhase::kReducing:
      return to == GradPhase::kEmpty;
  }
  return false;
}

}  // namespace fsdp
