#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels {

struct ScheduleFreeStep {
  double lr;  // of this step
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double share;                    // of this step's iterate in the average of all; 1 in the first
  int64_t step;                    // 1 for the first, which writes the iterate and does not read it
  double gradient_factor = 1;      // g below is the gradient times this
  at::Tensor gradient_scale = {};  // and this, as in AdamWStep
};

// In fp64 arithmetic, then rounded. Without gradient_scale.
ScheduleFreeFactors make_factors(const ScheduleFreeStep& step);

// One update of schedule-free AdamW, whose weight y lies between the iterate z (y, before the first step) and the
// average x: y = (1-b1)*z + b1*x. 16 B/element read, 12 B written (+ 2 B copy).
//   v = b2*v + (1-b2)*g*g;  d = g / (sqrt(v/(1-b2^n)) + eps) + wd*y
//   y += share*(z - y) - lr*(1 - b1*(1-share))*d;  z -= lr*d
// weight, gradient, iterate, squares, copy and other devices as in adamw_step().
void schedule_free_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& iterate,
                        const at::Tensor& squares, const at::Tensor& copy, const ScheduleFreeStep& step);

}  // namespace fsdp::kernels
