#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::kernels {

struct AdamWStep {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  int64_t step;                // 1 for the first
  double gradient_factor = 1;  // g below is the gradient times this
};

// One AdamW update of a flat range, each byte read and written once: 16 B/element read, 12 B written (+ 2 B copy).
//   w *= 1 - lr*wd;  m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g;  w -= lr * (m/(1-b1^n)) / (sqrt(v/(1-b2^n)) + eps)
// weight, gradient, m, v: fp32, 1-D, contiguous, equal length. copy: undefined, or bf16 or fp32 of that length:
// receives the weight, rounded.
void adamw_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
                const at::Tensor& copy, const AdamWStep& step);

}  // namespace fsdp::kernels
