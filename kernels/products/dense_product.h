// Large products of fp32 and bf16 by our own tiles (raw/dense_gemm.h), on all threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// Whether they are faster than the libraries' here: [rows, depth] times a weight [.., depth].
bool prefers_dense_product(int64_t rows, int64_t depth, at::ScalarType type);
// Likewise for a weight's gradient, a sum over `depth` tokens.
bool prefers_dense_gradient(int64_t depth, at::ScalarType type);

// Whether dense_gradient() takes tiles of bf16 pairs (raw/products/tiled_gradient.h), and they are faster.
bool prefers_tiled_gradient(const at::Tensor& a_TN, const at::Tensor& b_TK);

// Whether they read x [.., K]: along or across its rows its numbers lie together.
bool fits_dense_product(const at::Tensor& x);

// y [.., N] = a [.., K] b [N, K]^T of one dtype. On the CPU.
at::Tensor dense_product(const at::Tensor& a, const at::Tensor& b);

// The same of bf16 in tile registers (raw/products/tiled_product.h), with the bits of many_rows_product(), and whether
// it can read a and b, and a has enough rows.
bool fits_tiled_product(const at::Tensor& a, const at::Tensor& b);
at::Tensor tiled_product(const at::Tensor& a, const at::Tensor& b);

// c [N, K] = scale * a [T, N]^T b [T, K], added to c if `add`; a and b of one dtype, c fp32 and contiguous. On the CPU.
void dense_gradient(const at::Tensor& a_TN, const at::Tensor& b_TK, double scale, float* c, bool add);

}  // namespace fsdp::kernels
