// Matrix products of blocks that fit a cache, of bf16 in pairs, on processors that multiply such pairs (AVX512_BF16).
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// A left operand: the pair (row, i) is at data[row * row_stride + i * pair_stride].
struct PairedOperand {
  const Bf16Pair* data;
  int64_t row_stride;
  int64_t pair_stride;

  PairedOperand from(int64_t row) const { return {data + row * row_stride, row_stride, pair_stride}; }
};

// Whether this processor has pair_gemm() and few_rows_of_pairs(), and the kernels are not held to a plainer set.
bool has_pair_gemm();

// C [m, n] fp32 = A [m, 2 pairs] B [2 pairs, n], added to C if `add`; products are summed in fp32. B: [pairs, n] pairs,
// row-major like C, with the given strides; n is a multiple of 16. Denormal numbers count as 0. An element of C depends
// neither on m nor on n. Single-threaded, allocates nothing. In tile registers (amx.h) where the processor has them and
// pairs of A lie side by side.
void pair_gemm(int64_t m, int64_t n, int64_t pairs, PairedOperand a, const Bf16Pair* b, int64_t b_stride, float* c,
               int64_t c_stride, bool add);
// The same in vectors everywhere, with other bits: register tiles of 6 x 64 after BLIS.
void pair_gemm_in_vectors(int64_t m, int64_t n, int64_t pairs, PairedOperand a, const Bf16Pair* b, int64_t b_stride,
                          float* c, int64_t c_stride, bool add);

}  // namespace fsdp::kernels::raw
