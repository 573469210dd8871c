#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// Sum of the squares of all elements, accumulated in fp64 over short fp32 sums. Any floating dtype, any shape. Waits
// for the device the values are on.
double sum_squares(const at::Tensor& values);

// The same, 0-dim fp64 on the device of the values, for which the host does not wait.
at::Tensor sum_squares_on_device(const at::Tensor& values);

}  // namespace fsdp::kernels
