// Products of bf16 on processors with tile registers (Intel AMX).
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"
#include "kernels/raw/products/pair_gemm.h"

namespace fsdp::kernels::raw::amx {

inline constexpr int64_t kGroup = 16;  // rows that a tile holds
inline constexpr int64_t kBlock = 64;  // outputs that are summed at once

// Whether the processor has AMX for bf16 and the system lets this process use it, and the kernels are not held to
// a plainer set.
bool is_available();

// raw::pair_gemm() in tiles, of an A whose pairs lie side by side (pair_stride 1). n is a multiple of 16, or less than
// 16. Pairs are summed 16 at a time, so an element of C depends neither on m nor on n, but has other bits than sums
// without tiles. Leaves the thread's tile configuration as it was, which oneDNN relies on.
void pair_gemm(int64_t m, int64_t n, int64_t pairs, PairedOperand a, const Bf16Pair* b, int64_t b_stride, float* c,
               int64_t c_stride, bool add);

// y [rows, count] with rows `stride` apart = A B, rounded once from the sums of pair_gemm(). B has as many columns as
// `count`, filled up to a multiple of 16. While a block of y is summed, its lines are fetched.
void multiply_rounded(int64_t rows, int64_t count, int64_t pairs, PairedOperand a, const Bf16Pair* b, int64_t b_stride,
                      Bf16* y, int64_t stride);

// Whether a weight [outputs, k] can be read without copies.
constexpr bool fits(int64_t outputs, int64_t k) { return outputs % 16 == 0 && k % 32 == 0; }

// Numbers of bf16 that pack() writes.
constexpr int64_t packed_size(int64_t rows, int64_t k) { return rows <= kGroup ? rows * k : (rows + 15) / 16 * 16 * k; }

// x [rows, k] to groups of 16 rows (the only one may be smaller, the last of several is filled up with zeros) of
// [k / 2, rows of the group, 2].
void pack(const Bf16* x, int64_t rows, int64_t k, Bf16* packed);

// y[row * stride + output] = x[row] . weight[output] for outputs 0 .. outputs - 1, a multiple of 16. Sums in fp32, in
// an order that does not depend on the number of rows or outputs: that of pair_gemm().
void multiply(const Bf16* packed, const Bf16* weight, Bf16* y, int64_t rows, int64_t k, int64_t stride,
              int64_t outputs);

}  // namespace fsdp::kernels::raw::amx
