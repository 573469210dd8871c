#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/stores.h"

namespace fsdp::kernels {

// output = chunks[0] + chunks[1] + ... in that order, or output += that sum where `add`. All 1-D, contiguous, of equal
// length; chunks of one dtype. fp32 sums of fp32 chunks take one pass, and only those mind `stores` and only without
// `add`; other dtypes go through ATen.
void sum_chunks(const at::Tensor& output, const std::vector<at::Tensor>& chunks, bool add,
                Stores stores = Stores::kCached);

}  // namespace fsdp::kernels
