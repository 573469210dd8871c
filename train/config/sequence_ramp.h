#pragma once

#include <cstdint>

#include "train/config/config.h"

namespace fsdp::train {

// Into how many pieces the sequences of a step are cut: in the first data.sequence_warmup_steps steps so many that none
// is longer than a limit, which grows by a line from data.sequence_warmup_length to data.sequence_length. With l, L and
// N these three: ceil(L / (l + floor(step * (L - l) / N))) while step < N, then 1. A function of the step alone. After:
// Li et al. 2022, "The Stability-Efficiency Dilemma", whose sequences are cut off; here no token is lost, so that a
// step reads as many as any other.
class SequenceRamp {
 public:
  explicit SequenceRamp(const DataConfig& config) : config_(config) {}

  int64_t pieces(int64_t step) const;

 private:
  DataConfig config_;
};

}  // namespace fsdp::train
