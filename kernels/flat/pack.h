#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// destination = gradient * scale, or destination += gradient * scale where `add`. destination: 1-D, contiguous,
// gradient.numel() elements of the reduce dtype; gradient: any strides, floating point. One pass for contiguous fp32
// and bf16 gradients into fp32, and on a device with kernels (flat_kernels.h) for contiguous ones of fp32, bf16 and
// fp16 into any of these.
void pack_gradient(const at::Tensor& destination, const at::Tensor& gradient, double scale, bool add);

}  // namespace fsdp::kernels
