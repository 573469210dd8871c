#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/flat/exact_sum.h"

namespace fsdp::kernels {

// Sum of the squares of all elements, accumulated in fp64 over short fp32 sums. Any floating dtype, any shape. Waits
// for the device the values are on.
double sum_squares(const at::Tensor& values);
// fp32 on the CPU: continues the sum `before` of slices of kSumBlock elements, or multiples of it, with the bits of the
// sum of all.
inline constexpr int64_t kSumBlock = 1024;
double sum_squares(const at::Tensor& values, double before);

// The same, 0-dim fp64 on the device of the values, for which the host does not wait.
at::Tensor sum_squares_on_device(const at::Tensor& values);

// Elements whose squares are added up with rounding in add_squares().
inline constexpr int64_t kSquaresBlock = 256;

// Adds the squares of all elements to `sum`, block after block: of slices that begin at multiples of kSquaresBlock the
// sums are, bit for bit, that of the whole. Any floating dtype, contiguous, on the CPU.
void add_squares(ExactSum& sum, const at::Tensor& values);

}  // namespace fsdp::kernels
