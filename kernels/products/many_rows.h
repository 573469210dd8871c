// Matrix products of many rows, each with the bits that it has alone: what the reading of prompts costs.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// True where many_rows_product() takes these: on the CPU, contiguous, not empty, weight [n, k] and x [..., k] both fp32
// or both bf16, or x fp32 and the weight bf16.
bool fits_many_rows(const at::Tensor& x, const at::Tensor& weight);

// x W^T for tensors that fit: x [..., k], weight [n, k], result [..., n] in x's dtype, without autograd. Products are
// summed in fp32, in the order of k; in bf16 by the tile registers (AMX) or the products of pairs (AVX512_BF16) of
// processors that have them. A row's result depends neither on the rows beside it nor on the number of threads.
at::Tensor many_rows_product(const at::Tensor& x, const at::Tensor& weight);

}  // namespace fsdp::kernels
