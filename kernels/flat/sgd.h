#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels {

enum class MomentumState { kNone, kFirstStep, kRunning };

struct SGDStep {
  double lr;
  double momentum;
  double dampening;
  double weight_decay;
  bool nesterov;
  MomentumState state;
  double gradient_factor = 1;      // g below is the gradient times this
  at::Tensor gradient_scale = {};  // and this, as in AdamWStep
};

// Without gradient_scale.
SGDFactors make_factors(const SGDStep& step);

// One SGD update of a flat fp32 range, semantics of torch.optim.SGD: g += wd*w; buffer = g in the first step, else
// momentum*buffer + (1-dampening)*g; w -= lr * (nesterov ? g + momentum*buffer : buffer).
// buffer is read and written unless state is kNone. copy and other devices as in adamw_step().
void sgd_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& buffer, const at::Tensor& copy,
              const SGDStep& step);

}  // namespace fsdp::kernels
