#include "train/config/sequence_ramp.h"

namespace fsdp::train {

int64_t SequenceRamp::pieces(int64_t step) const {
  const int64_t steps = config_.sequence_warmup_steps;
  if (step >= steps) return 1;
  const int64_t first = config_.sequence_warmup_length, whole = config_.sequence_length;
  return (whole - 1) / (first + step * (whole - first) / steps) + 1;
}

}  // namespace fsdp::train
