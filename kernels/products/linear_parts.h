// What operators that contain a matrix product with a weight share.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/base/gradient_slot.h"

namespace fsdp::kernels {

// a [..., k] times b [n, k] transposed, of one dtype and device, without autograd: [..., n]. Strided views are fine.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

// What fused_linear() returns, of weights that lie side by side, without autograd.
std::vector<at::Tensor> fused_product(const at::Tensor& x, at::TensorList weights);

// The sum over t of grad[t, n] * x[t, k] goes into the slot's target [n, k]. fp32 or bf16. On devices other than the
// CPU it is the operator fsdp::fill_weight_gradient.
void fill_weight_gradient(const GradientSlot& slot, const at::Tensor& grad_TN, const at::Tensor& x_TK);

// The same sum as a backward returns it: the stand-in of the weight's slot, which is filled, or where it has none a new
// tensor of the weight's dtype.
at::Tensor weight_gradient(const at::Tensor& weight_NK, const at::Tensor& grad_TN, const at::Tensor& x_TK);

}  // namespace fsdp::kernels
