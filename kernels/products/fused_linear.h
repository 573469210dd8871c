// Several linear maps of one input, as one matrix product: fused QKV, fused gate and up.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::kernels {

// {x W0^T, x W1^T, ...}, differentiable in x and the weights: x [..., in], weight i [out_i, in], result i [..., out_i].
// Where the weights lie side by side, one matrix product makes all results, as columns of one tensor: rows of a result
// are then sum(out) elements apart. The backward is one product for x and one for the weights, written into their
// GradientSlots where those lie side by side too. Weights that do not lie so, or differ in requires_grad, take one
// linear() each, and so does what linear() itself treats specially: a RowwiseScope, an fp32 x with bf16 weights.
// Results differ from those of linear() by the order of sums, and x's gradient is rounded once for all weights.
// Operator: fsdp::fused_linear. Throws c10::Error on shapes or dtypes that do not fit.
std::vector<at::Tensor> fused_linear(const at::Tensor& x, at::TensorList weights);

// Whether these matrices [out_i, in] are consecutive rows of one matrix in memory, in this order: what fully_shard()
// makes of neighbouring parameters of one dtype whose bytes are multiples of 16. Reads no values.
bool lie_side_by_side(at::TensorList weights);

}  // namespace fsdp::kernels
