#pragma once

#include <cuda_runtime.h>

#include "kernels/raw/flat/step_factors.h"

namespace fsdp::kernels::cuda {

// Of one element. Every operation rounds as written: what the compiler fuses must not depend on the path that an
// element takes.
__device__ inline void adamw_update(float& w, float g, float& m, float& v, const AdamWFactors& f, float scale) {
  const float gradient = __fmul_rn(g, scale);
  m = __fmaf_rn(f.beta1, m, __fmul_rn(f.rest1, gradient));
  v = __fmaf_rn(f.beta2, v, __fmul_rn(__fmul_rn(f.rest2, gradient), gradient));
  const float root = __fmaf_rn(__fsqrt_rn(v), f.root_scale, f.eps);
  w = __fmaf_rn(w, f.keep, -__fdiv_rn(__fmul_rn(f.step_size, m), root));
}

// What a kernel multiplies gradients with: a number, and one that is read where it lies.
__device__ inline float gradient_scale_of(float number, const float* scale) {
  return scale == nullptr ? number : __fmul_rn(number, *scale);
}

}  // namespace fsdp::kernels::cuda
