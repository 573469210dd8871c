// Rows of a table, by index.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// y[..., :] = weight[ids[...]], differentiable in weight: weight [V, E], ids int64 of any shape, on one device, CPU or
// CUDA (there fp32 and bf16), y [..., E]. The gradient is dense; in fp32 and bf16 it is written into the weight's
// GradientSlot where there is one. Sums of equal ids are taken in fp32, in their order. Operator: fsdp::embedding, and
// in the backward on CUDA fsdp::embedding_backward or fsdp::fill_embedding_gradient. Throws c10::Error on shapes or
// dtypes that do not fit, and on the CPU on ids outside 0 .. V-1. On CUDA, where a look at the ids would make the host
// wait, such an id's row of y is NaN, so that a loss tells, and the gradient passes it over.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

}  // namespace fsdp::kernels
