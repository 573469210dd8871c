// A matrix product of bf16 numbers with a weight that stays fp32.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// y = bf16(x) bf16(W)^T, summed in fp32 and rounded to bf16: x [..., in], weight [out, in], y [..., out], all fp32
// tensors on the CPU. So are the gradients, of x bf16(grad) bf16(W), of the weight bf16(grad)^T bf16(x), written
// into its GradientSlot where there is one. The weight is rounded anew in the backward: no copy of it stays in
// between. Operator: fsdp::narrow_linear. Throws c10::Error on shapes, dtypes or devices that do not fit.
at::Tensor narrow_linear(const at::Tensor& x, const at::Tensor& weight);

// linear(), fused_linear() and linear_cross_entropy() take the fp32 weight so from now on, for as long as it lives.
// Thread-safe.
void set_narrow(const at::Tensor& weight);
// Costs next to nothing in a process without such weights. Thread-safe.
bool is_narrow(const at::Tensor& weight);

}  // namespace fsdp::kernels
