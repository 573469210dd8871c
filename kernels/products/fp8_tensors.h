// Matrices as LibTorch's own tensors of fp8 numbers, multiplied by at::_scaled_mm: what devices do whose tensor cores
// have such products. All in operators of ATen, which the CPU has too.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/products/fp8_linear.h"

namespace fsdp::kernels {

struct Fp8Tensor {
  at::Tensor numbers;  // [rows, columns], float8_e4m3fn or float8_e5m2
  at::Tensor scales;   // fp32, powers of two: [rows, 1], or [1, 1] where the whole matrix has one
};

// Whether a sum of the recipe's products has one scale, as _scaled_mm needs: kTensorwise and kRowwise.
bool has_scaled_product(Fp8Recipe recipe);

// A matrix [rows, columns] in fp32 or bf16 as that operand of a product that sums over columns, rounded to the same
// numbers as round_to_fp8() has, on the matrix's device, for which the host does not wait.
Fp8Tensor to_fp8_tensor(const at::Tensor& matrix, Fp8Recipe recipe, Fp8Operand operand);

// a [m, k] times b [n, k] transposed, summed in fp32: [m, n] of `type`. n has to be a multiple of 16; k is padded to
// one.
at::Tensor scaled_product(const Fp8Tensor& a_MK, const Fp8Tensor& b_NK, at::ScalarType type);

// fp8_linear() without autograd: what a library of a device registers as fsdp::fp8_linear.
at::Tensor fp8_product_on_device(const at::Tensor& x, const at::Tensor& weight, int64_t recipe);

// Throws c10::Error for a GPU that has no products of fp8 numbers, by 10 * major + minor of its compute capability.
void check_fp8_capability(int compute_capability);

}  // namespace fsdp::kernels
