#include "train/config/batch_ramp.h"

#include <algorithm>

namespace fsdp::train {

BatchRamp::BatchRamp(const TrainConfig& config)
    : batch_(config.batch_sequences),
      increment_(config.batch_warmup_sequences > 0 ? config.batch_warmup_sequences : config.batch_sequences),
      levels_(batch_ / increment_),
      steps_(config.batch_warmup_steps) {}

// First step of a level, counted from 0: the least s with s * (levels - 1) / steps >= level.
int64_t BatchRamp::begin_of(int64_t level) const {
  if (level == 0) return 0;
  return (level * steps_ + levels_ - 2) / (levels_ - 1);
}

int64_t BatchRamp::sequences(int64_t step) const {
  if (is_flat() || step >= steps_) return batch_;
  return increment_ * (1 + step * (levels_ - 1) / steps_);
}

// From its first step on each level brings one increment more.
int64_t BatchRamp::consumed(int64_t step) const {
  if (is_flat()) return step * batch_;
  const int64_t in_ramp = std::min(step, steps_);
  int64_t increments = 0;
  for (int64_t level = 0; level < levels_ && begin_of(level) < in_ramp; ++level)
    increments += in_ramp - begin_of(level);
  return increments * increment_ + (step - in_ramp) * batch_;
}

int64_t BatchRamp::steps_for(int64_t sequences) const {
  const int64_t of_ramp = is_flat() ? 0 : consumed(steps_);
  const int64_t ramp = is_flat() ? 0 : steps_;
  if (sequences > of_ramp) return ramp + (sequences - of_ramp - 1) / batch_ + 1;
  int64_t below = 0, enough = ramp;  // consumed(below) < sequences <= consumed(enough)
  if (sequences <= 0) return 0;
  while (enough - below > 1) {
    const int64_t middle = below + (enough - below) / 2;
    (consumed(middle) < sequences ? below : enough) = middle;
  }
  return enough;
}

}  // namespace fsdp::train
