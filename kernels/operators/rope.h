// Rotary position embedding of queries and keys.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace fsdp::kernels {

// Rotates q and k by position: x * cos + rotate_half(x) * sin, Hugging Face's convention (the second half of a head is
// the partner of the first). Differentiable in q and k; the backward is the rotation by the negative angle.
//   q [B, T, Hq, D], k [B, T, Hk, D]; cos, sin [T, D] or [B, T, D]; D even; all fp32 or all bf16, on one device, CPU or
//   CUDA. Results: contiguous, shapes as q and k.
// In bf16 each product is rounded before the sum, as Hugging Face's separate operators do.
// Heads that lie side by side are read where they are. Operator: fsdp::rope. Throws c10::Error on shapes or dtypes that
// do not fit.
std::pair<at::Tensor, at::Tensor> apply_rope(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                             const at::Tensor& sin);

// x [B, T, heads * dim] or [B, T, heads, dim] as the latter, a view. Throws c10::Error if it is neither.
at::Tensor split_heads(const at::Tensor& x, int64_t dim);

// The same in place, without memory for results: q and k as above, or [B, T, heads * D]; columns of a wider tensor or
// not, but none that autograd knows as a view. What computed them must not need them for its backward. Operator:
// fsdp::rope_.
void apply_rope_(at::Tensor& q, at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace fsdp::kernels
