#pragma once

#include <cstdint>

namespace fsdp::train {

// Linear warm-up, then half a cosine down to the last step. The same arithmetic as docs/config.md states.
struct LrSchedule {
  double lr = 1e-3;           // at the end of the warm-up
  double min_lr_ratio = 0.1;  // learning rate of the last step / lr
  int64_t warmup_steps = 0;
  int64_t steps = 1;  // of the whole run

  // Learning rate of step 0 .. steps-1. With n = step + 1: lr * n / warmup while n <= warmup, then with
  // p = (n - warmup) / (steps - warmup): lr_min + (lr - lr_min) * (1 + cos(pi * p)) / 2.
  double at(int64_t step) const;
};

}  // namespace fsdp::train
