// Rows of a table, by index.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// y[..., :] = weight[ids[...]], differentiable in weight: weight [V, E] on the CPU, ids int64 of any shape, y [..., E].
// The gradient is dense; in fp32 and bf16 it is written into the weight's GradientSlot where there is one. Sums of
// equal ids are taken in fp32, in their order. Operator: fsdp::embedding. Throws c10::Error on shapes or dtypes that do
// not fit and on ids outside 0 .. V-1.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);

}  // namespace fsdp::kernels
