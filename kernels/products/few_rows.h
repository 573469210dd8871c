// Matrix products in which a weight meets few rows: what a token of generation costs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::kernels {

// Up to so many rows the product is bound by reading the weight, or nearly so.
inline constexpr int64_t kFewRows = 32;
// The same where x is fp32 and the weight bf16, which other products would have to convert first.
inline constexpr int64_t kFewRowsOfMixed = 128;

// True where few_rows_product() takes these: what fits_many_rows(), and x of at most kFewRows rows, or kFewRowsOfMixed
// where x is fp32 and the weight bf16.
bool fits_few_rows(const at::Tensor& x, const at::Tensor& weight);

// x W^T for tensors that fit: x [..., k], weight [n, k], result [..., n] in x's dtype, without autograd. The weight is
// read once, from memory in one stream per thread; products are summed in fp32, in bf16 by the tile registers (AMX) or
// the products of pairs (AVX512_BF16) of processors that have them. A row's result depends neither on the rows beside
// it nor on the number of threads.
at::Tensor few_rows_product(const at::Tensor& x, const at::Tensor& weight);

}  // namespace fsdp::kernels
