#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::kernels {

// output = chunks[0] + chunks[1] + ... in that order, or output += that sum where `add`. All 1-D, contiguous, of equal
// length; chunks of one dtype. fp32 sums of fp32 and bf16 chunks take one pass; other dtypes go through ATen.
void sum_chunks(const at::Tensor& output, const std::vector<at::Tensor>& chunks, bool add);

}  // namespace fsdp::kernels
