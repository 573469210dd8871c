#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::kernels {

// Sum of the squares of all elements, accumulated in fp64 over blocks of fp32 sums. Any floating dtype, any shape.
double sum_squares(const at::Tensor& values);

}  // namespace fsdp::kernels
