#include "train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fsdp::train {

double LrSchedule::at(int64_t step) const {
  const auto n = static_cast<double>(step + 1);
  const auto warmup = static_cast<double>(warmup_steps);
  if (n <= warmup) {
    return lr * n / warmup;
  }
  const double lr_min = min_lr_ratio * lr;
  const double progress = std::min(1.0, (n - warmup) / std::max(1.0, static_cast<double>(steps) - warmup));
  return lr_min + 0.5 * (lr - lr_min) * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace fsdp::train
