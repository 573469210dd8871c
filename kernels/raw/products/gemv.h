// A matrix times one column, in fp32.
#pragma once

#include <cstdint>

namespace fsdp::kernels::raw {

// y [m] = A [m, k] x [k], added to y if `add`; rows of A lie a_stride numbers apart. The bits are those of a column of
// small_gemm(), which would compute 16 columns of it. Single-threaded, allocates nothing.
void small_gemv(int64_t m, int64_t k, const float* a, int64_t a_stride, const float* x, float* y, bool add);

}  // namespace fsdp::kernels::raw
