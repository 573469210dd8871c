// fp16 on the CPU, where our kernels compute in fp32 and bf16: operands are widened before them and results narrowed
// after, so that sums are fp32 and what is saved for a backward is fp16.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

inline bool is_half_on_cpu(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kHalf; }

// Undefined tensors stay so.
inline at::Tensor widened(const at::Tensor& x) { return x.defined() ? x.to(at::kFloat) : x; }
inline at::Tensor narrowed(const at::Tensor& x) { return x.defined() ? x.to(at::kHalf) : x; }

}  // namespace fsdp::kernels
