#pragma once

#include <cstdint>
#include <string>

#include "train/config/config.h"

namespace fsdp::train {

// Learning rate of each step. Linear warm-up, then one of four shapes; all of them are laid out over the planned number
// of steps, so that the learning rate of a step does not depend on when or where it is computed.
struct LrSchedule {
  enum class Shape {
    kCosine,    // half a cosine down to the last step
    kWsd,       // warm-up, stable, decay: constant but for the last `decay_steps` (arXiv 2404.06395, 2405.18392)
    kLinear,    // a line down to the last step
    kConstant,  // as at the end of the warm-up
  };
  enum class Decay { kOneMinusSqrt, kLinear };  // of kWsd

  double lr = 1e-3;           // at the end of the warm-up
  double min_lr_ratio = 0.1;  // learning rate of the last step / lr; kConstant does not read it
  int64_t warmup_steps = 0;
  int64_t steps = 1;  // of the whole run
  Shape shape = Shape::kCosine;
  Decay decay = Decay::kOneMinusSqrt;
  int64_t decay_steps = 0;  // 0: a tenth of `steps`; never more than what follows the warm-up

  // Learning rate of step 0 .. steps-1. With n = step + 1, w = warmup_steps, lr_min = min_lr_ratio * lr: lr * n / w
  // while n <= w; then lr_min + (lr - lr_min) * f(p) with
  //   kCosine: p = (n - w) / (steps - w), f = (1 + cos(pi p)) / 2      kLinear: the same p, f = 1 - p
  //   kWsd: p = (n - (steps - d)) / d, f = 1 where p <= 0, else 1 - sqrt(p) or 1 - p, d = decay_steps
  double at(int64_t step) const;
};

// "2,000 steps, 50 of warm-up, then 0.001 to 0.0001 by a cosine"
std::string describe(const LrSchedule& schedule);

LrSchedule make_schedule(const TrainConfig& config);

// Tokens that the model reads in a step with the whole batch, over all ranks; the largest number there is where that
// overflows.
int64_t tokens_per_step(const Config& config);

// `config.train` with what it says in tokens turned into steps: warmup_tokens into warmup_steps, max_tokens into steps,
// where it is the lower limit. Both round up. The same again changes nothing.
TrainConfig resolve_tokens(const Config& config);

}  // namespace fsdp::train
