#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels {

struct LionStep {
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
  double gradient_factor = 1;      // g below is the gradient times this
  at::Tensor gradient_scale = {};  // and this, as in AdamWStep
};

// In fp64 arithmetic, then rounded. Without gradient_scale.
LionFactors make_factors(const LionStep& step);

// One Lion update of a flat range, 12 B/element read and 8 B written (+ 2 B copy):
//   w *= 1 - lr*wd;  w -= lr * sign(b1*m + (1-b1)*g);  m = b2*m + (1-b2)*g
// The sign of 0 is 0, that of NaN is NaN. weight, gradient, momentum, copy and other devices as in adamw_step().
void lion_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& momentum, const at::Tensor& copy,
               const LionStep& step);

}  // namespace fsdp::kernels
