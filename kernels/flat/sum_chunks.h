#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/raw/flat/stores.h"

namespace fsdp::kernels {

// output = the sum of the chunks, as the tree of kernels/raw/flat/sum_chunks.h, or output += that sum where `add`. All
// 1-D, contiguous, of equal length; chunks of one dtype. Sums of fp32 chunks take one pass, and so do those of bf16 and
// fp16 chunks, in fp32, on a device with kernels (flat_kernels.h); other dtypes go through ATen. Only fp32 sums of fp32
// chunks in the CPU's memory mind `stores`, and only without `add`.
void sum_chunks(const at::Tensor& output, const std::vector<at::Tensor>& chunks, bool add,
                raw::Stores stores = raw::Stores::kCached);

}  // namespace fsdp::kernels
