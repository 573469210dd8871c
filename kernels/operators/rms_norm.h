// Root mean square normalisation with a learned scale.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace fsdp::kernels {

// y = weight * x / sqrt(mean(x^2) + eps) over the last dimension, differentiable in x and weight.
//   x [..., H], weight [H], both fp32 or both bf16, on one device, CPU or CUDA; y as x.
// Statistics are fp32. In bf16 the normalised value is rounded to bf16 before the product with the weight, as Hugging
// Face's LlamaRMSNorm does. Saves x, the weight and one fp32 number per row for the backward.
// Operators: fsdp::rms_norm, and beneath it fsdp::rms_norm_forward and _backward. Throws c10::Error on shapes or dtypes
// that do not fit.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// {x + residual, rms_norm of that}, each element of either read once and of their gradients likewise; bits, forward and
// backward, are those of the two operators. `residual` is like x. Operators: fsdp::add_rms_norm, and beneath it
// fsdp::add_rms_norm_forward and _backward.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double eps);

}  // namespace fsdp::kernels
