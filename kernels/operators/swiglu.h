// The gated activation of Llama-style MLPs.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// y = silu(gate) * up, differentiable in both.
//   gate, up: same shape, both fp32 or both bf16, on one device, CPU or CUDA; y dense. Columns of one tensor are read
//   where they are, and their gradients are then columns of one tensor again.
// In bf16 silu is rounded before the product, as Hugging Face's two operators do. Saves gate and up only.
// Operators: fsdp::swiglu_forward, fsdp::swiglu_backward. Throws c10::Error on shapes or dtypes that do not fit.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace fsdp::kernels
