// What kernels over flat memory ask of their tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "kernels/cuda/launch.h"

namespace fsdp::kernels::cuda {

inline Dtype dtype_of(const char* op, const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return Dtype::kFloat;
  if (tensor.scalar_type() == at::kBFloat16) return Dtype::kBFloat16;
  TORCH_CHECK(tensor.scalar_type() == at::kHalf, "[", op, "] got ", tensor.scalar_type(),
              ", expected float32, bfloat16 or float16");
  return Dtype::kHalf;
}

// That a kernel may read and write `tensor` beside `first`.
inline void check_beside(const char* op, const at::Tensor& first, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device() == first.device() && tensor.is_contiguous() && tensor.numel() == first.numel(), "[", op,
              "] got ", tensor.numel(), " elements with strides ", tensor.strides(), " on ", tensor.device(),
              ", expected ", first.numel(), " side by side on ", first.device());
}

}  // namespace fsdp::kernels::cuda
