#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels {

struct AdamWStep {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  int64_t step;                    // 1 for the first
  double gradient_factor = 1;      // g below is the gradient times this
  at::Tensor gradient_scale = {};  // and times this, if defined: 0-dim fp32 on the weight's device, read by its kernel
};

// Of a model weight, by adamw_step() and sgd_step(): fp32, bf16 or fp16.
bool writes_copies_of(at::ScalarType dtype);

// In fp64 arithmetic, then rounded. Without gradient_scale.
AdamWFactors make_factors(const AdamWStep& step);

// One AdamW update of a flat range, each byte read and written once: 16 B/element read, 12 B written (+ 2 B copy).
//   w *= 1 - lr*wd;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g;  w -= lr * (m/(1-b1^n)) / (sqrt(v/(1-b2^n)) + eps)
// weight, gradient, m, v: fp32, or on the CPU fp64; 1-D, contiguous, equal length. copy: undefined, or bf16, fp16 or
// fp32 of that length: receives the weight, rounded. On another device than the CPU: on its current stream, by the
// kernels it has (flat_kernels.h); throws where it has none.
void adamw_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
                const at::Tensor& copy, const AdamWStep& step);

}  // namespace fsdp::kernels
