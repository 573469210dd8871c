// A matrix product with a weight, without bias.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// y = x W^T, differentiable in both: x [..., in], weight [out, in], y [..., out], of one floating dtype and device.
// fp32 on the CPU goes through oneDNN, which uses AVX-512 on every processor that has it; LibTorch's own path (MKL)
// does not on some, at half the speed. fp16 on the CPU is multiplied in fp32. Everything else is at::linear. Results
// differ from at::linear by the order of sums. Where gradients are off, an fp32 x may meet a bf16 weight, and a
// RowwiseScope chooses products whose rows do not depend on each other. In fp32 and bf16 the weight's gradient is
// written into its GradientSlot where there is one: on the CPU, and on CUDA where fsdp::cuda is loaded, there by one
// product that sums and adds in fp32. A weight with an Fp8Recipe goes to fp8_linear(). Operators: fsdp::linear,
// fsdp::few_rows_linear, fsdp::many_rows_linear, or those of at::linear. Throws c10::Error on shapes or dtypes that do
// not fit.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace fsdp::kernels
