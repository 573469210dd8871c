// RMSNorm of rows, forward and backward, alone or of a sum of two. T: float or Bf16. Single-threaded, allocate nothing;
// a row's result does not depend on the rows beside it.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// What is normalised are rows of x, or with a residual (else null) those of their sum, which is written to `sum` then.
// weight [width]; y like x; rstd [rows]: 1 / sqrt(mean of squares + eps).
template <class T>
struct RmsNormForward {
  const T *x, *residual, *weight;
  T *sum, *y;
  float* rstd;
  int64_t rows, width;
  float eps;
};

void rms_norm(const RmsNormForward<float>& rows);
void rms_norm(const RmsNormForward<Bf16>& rows);

// x is what was normalised. grad_sum: the gradient of x from elsewhere, added to grad_x, or null. grad_weight [width]
// is added to.
template <class T>
struct RmsNormBackward {
  const T *grad_y, *grad_sum, *x, *weight;
  const float* rstd;
  T* grad_x;
  float* grad_weight;
  int64_t rows, width;
};

void rms_norm_backward(const RmsNormBackward<float>& rows);
void rms_norm_backward(const RmsNormBackward<Bf16>& rows);

}  // namespace fsdp::kernels::raw
