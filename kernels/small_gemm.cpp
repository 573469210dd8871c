#include "kernels/small_gemm.h"

#include <algorithm>

#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

using simd::Float;
using simd::kLanes;

// C [kRows, 16 * kVectors], held in registers over the whole of k.
template <int kRows, int kVectors>
FSDP_ALWAYS_INLINE void tile(int64_t k, const LeftOperand& a, const float* b, int64_t b_stride, float* c,
                             int64_t c_stride, bool add) {
  Float sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[row][v] = add ? simd::load(c + row * c_stride + v * kLanes) : Float{};
  const float* column = a.data;
  for (int64_t i = 0; i < k;) {
    // The next tile's rows, which may come from memory, in pieces too short for the processor to foresee.
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) __builtin_prefetch(column + (kRows + row) * a.row_stride);
    for (const int64_t stop = std::min(i + kLanes, k); i < stop; ++i, b += b_stride, column += a.column_stride) {
      Float right[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) right[v] = simd::load(b + v * kLanes);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const float left = column[row * a.row_stride];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[row][v] += left * right[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) simd::store(c + row * c_stride + v * kLanes, sums[row][v]);
}

template <int kVectors>
FSDP_ALWAYS_INLINE void columns(int64_t m, int64_t k, LeftOperand a, const float* b, int64_t b_stride, float* c,
                                int64_t c_stride, bool add) {
  int64_t row = 0;
  for (; row + 4 <= m; row += 4, a.data += 4 * a.row_stride, c += 4 * c_stride)
    tile<4, kVectors>(k, a, b, b_stride, c, c_stride, add);
  for (; row < m; ++row, a.data += a.row_stride, c += c_stride) tile<1, kVectors>(k, a, b, b_stride, c, c_stride, add);
}

}  // namespace

FSDP_SIMD_CLONES void small_gemm(int64_t m, int64_t n, int64_t k, LeftOperand a, const float* b, int64_t b_stride,
                                 float* c, int64_t c_stride, bool add) {
  int64_t column = 0;
  for (; column + 4 * kLanes <= n; column += 4 * kLanes)
    columns<4>(m, k, a, b + column, b_stride, c + column, c_stride, add);
  for (; column + 2 * kLanes <= n; column += 2 * kLanes)
    columns<2>(m, k, a, b + column, b_stride, c + column, c_stride, add);
  for (; column < n; column += kLanes) columns<1>(m, k, a, b + column, b_stride, c + column, c_stride, add);
}

}  // namespace fsdp::kernels
