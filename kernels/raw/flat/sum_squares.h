// Norms of ranges.
#pragma once

#include <cstdint>

namespace fsdp::kernels::raw {

// Sum of the squares, in fp64 over short fp32 sums. Single-threaded, allocates nothing.
double sum_squares(const float* values, int64_t count);

}  // namespace fsdp::kernels::raw
