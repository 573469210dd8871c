// Norms of ranges.
#pragma once

#include <cstdint>

namespace fsdp::kernels::raw {

// `before` and the squares, in fp64 over fp32 sums of 1024. Single-threaded, allocates nothing.
double sum_squares(const float* values, int64_t count, double before = 0);

}  // namespace fsdp::kernels::raw
