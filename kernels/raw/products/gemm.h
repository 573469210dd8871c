// Matrix products of blocks that fit a cache, in fp32.
#pragma once

#include <cstdint>

namespace fsdp::kernels::raw {

// A left operand: element (row, column) is at data[row * row_stride + column * column_stride], so that a transposed
// block needs no copy.
struct LeftOperand {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

// C [m, n] = A [m, k] B [k, n], added to C if `add`. B and C are row-major with the given strides; n is a multiple
// of 16. An element of C is one sum in the order of k, whatever m and n. Single-threaded, allocates nothing. Register
// tiles after BLIS, as large as the processor's registers allow.
void small_gemm(int64_t m, int64_t n, int64_t k, LeftOperand a, const float* b, int64_t b_stride, float* c,
                int64_t c_stride, bool add);

}  // namespace fsdp::kernels::raw
