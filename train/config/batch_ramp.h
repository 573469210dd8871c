#pragma once

#include <cstdint>

#include "train/config/config.h"

namespace fsdp::train {

// Sequences of the global batch of each step: train.batch_sequences, or, in the first train.batch_warmup_steps steps,
// fewer: train.batch_warmup_sequences in step 0, growing by as many at a time, at equal distances. With b and B those
// two, K = B / b and W the steps: b * (1 + floor(step * (K - 1) / W)) while step < W, then B. A function of the step
// alone, whatever the number of ranks and wherever a run was resumed. After: GPT-3's linear batch warm-up (Brown et al.
// 2020), Megatron-LM's --rampup-batch-size.
class BatchRamp {
 public:
  // REQUIRES: what check_warmups() lets pass.
  explicit BatchRamp(const TrainConfig& config);

  int64_t sequences(int64_t step) const;
  // Of all steps before `step`.
  int64_t consumed(int64_t step) const;
  // The fewest steps that consume so many or more.
  int64_t steps_for(int64_t sequences) const;
  bool is_flat() const { return levels_ == 1; }

 private:
  int64_t begin_of(int64_t level) const;

  int64_t batch_;      // in the end
  int64_t increment_;  // and at first
  int64_t levels_;
  int64_t steps_;  // of the ramp
};

}  // namespace fsdp::train
