#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fsdp::kernels {

// Each row times the weight of its expert, differentiable in both: x [R, in], so many rows of each expert, one's after
// the other's; weights [experts, out, in]; [R, out] of one floating dtype and device. Experts without rows get a
// gradient of zeros. One linear() after the other, and on CUDA in bf16, where `in` and `out` are multiples of 8,
// grouped_linear_at_once(). Throws c10::Error on shapes that do not fit.
at::Tensor grouped_linear(const at::Tensor& x, const std::vector<int64_t>& rows, const at::Tensor& weights);

// The same by at::_grouped_mm: one product for all experts in the forward, one for each gradient in the backward, for
// none of which the host waits.
at::Tensor grouped_linear_at_once(const at::Tensor& x, const std::vector<int64_t>& rows, const at::Tensor& weights);

}  // namespace fsdp::kernels
