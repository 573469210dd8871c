// A matrix product with a weight, of fp8 numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/products/fp8_recipe.h"

namespace fsdp::kernels {

// What a matrix is in a product y = x W^T or in one of its gradients.
enum class Fp8Operand { kActivation, kWeight, kGradient };
// The dimension that a product sums over.
enum class SummedOver { kColumns, kRows };

// y = fp8(x) fp8(W)^T, summed in fp32: x [..., in], weight [out, in], y [..., out], of one dtype, fp32 or bf16, on one
// device. The gradients are products of fp8 numbers too: of x fp8(grad) fp8(W), of the weight fp8(grad)^T fp8(x), each
// operand rounded anew along the dimension that is summed over, the weight's written into its GradientSlot where there
// is one. Processors have no products of fp8: the numbers keep the dtype they had, in which they are exact, and so
// every product of two of them is exact in fp32, as it is on hardware that has them: GPUs from compute capability 8.9
// on, with kTensorwise and kRowwise (fp8_tensors.h). Operator: fsdp::fp8_linear. Throws c10::Error on shapes, dtypes or
// devices that do not fit.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, Fp8Recipe recipe);

// What a matrix [rows, columns] becomes as that operand of a product; fp32 or bf16, on the CPU.
at::Tensor round_to_fp8(const at::Tensor& matrix, Fp8Recipe recipe, Fp8Operand operand, SummedOver summed);

// For experiments: from now on all scales of all products on the CPU are 2^steps times what they should be; 0: right.
// What shows whether a check would notice. Thread-safe.
void break_fp8_scales(int steps);

}  // namespace fsdp::kernels
