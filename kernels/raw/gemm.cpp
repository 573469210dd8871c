#include "kernels/raw/gemm.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/gemm.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::kNativeLanes;
using simd::Native;
using simd::Tag;
namespace hn = hwy::HWY_NAMESPACE;

// A tile's sums, a row of B and an element of A fit the registers: 6 x 4 of 32, 6 x 2 of 16.
constexpr int kTileRows = 6;
constexpr int kTileVectors = simd::kRegisters == 32 ? 4 : 2;

struct Block {
  int64_t k;
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  bool add;
};

// C [kRows, kVectors of lanes], held in registers over the whole of k.
template <int kRows, int kVectors>
HWY_INLINE void tile(const Block& x) {
  const Tag tag;
  Native sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      sums[row][v] = x.add ? hn::LoadU(tag, x.c + row * x.c_stride + v * kNativeLanes) : hn::Zero(tag);
  const float *column = x.a, *b = x.b;
  for (int64_t i = 0; i < x.k;) {
    // The next tile's rows, which may come from memory, in pieces too short for the processor to foresee.
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) hwy::Prefetch(column + (kRows + row) * x.a_row);
    for (const int64_t stop = std::min(i + kLanes, x.k); i < stop; ++i, b += x.b_stride, column += x.a_column) {
      Native right[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) right[v] = hn::LoadU(tag, b + v * kNativeLanes);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const Native left = hn::Set(tag, column[row * x.a_row]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[row][v] = hn::MulAdd(left, right[v], sums[row][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[row][v], tag, x.c + row * x.c_stride + v * kNativeLanes);
}

// All rows of `kVectors` of columns.
template <int kVectors>
HWY_INLINE void columns(int64_t m, Block x) {
  int64_t row = 0;
  const auto take = [&](int64_t rows) HWY_ATTR {
    row += rows;
    x.a += rows * x.a_row;
    x.c += rows * x.c_stride;
  };
  for (; row + kTileRows <= m; take(kTileRows)) tile<kTileRows, kVectors>(x);
  for (; row + 4 <= m; take(4)) tile<4, kVectors>(x);
  for (; row + 2 <= m; take(2)) tile<2, kVectors>(x);
  if (row < m) tile<1, kVectors>(x);
}

// Columns from `column` on, in tiles of kVectors and then of fewer; n is a multiple of 16.
template <int kVectors>
HWY_INLINE void columns_from(int64_t column, int64_t m, int64_t n, const Block& x) {
  constexpr int kWidth = kVectors * kNativeLanes;
  for (; column + kWidth <= n; column += kWidth) {
    Block part = x;
    part.b += column;
    part.c += column;
    columns<kVectors>(m, part);
  }
  if constexpr (kWidth > kLanes) columns_from<kVectors / 2>(column, m, n, x);
}

void small_gemm(int64_t m, int64_t n, int64_t k, LeftOperand a, const float* b, int64_t b_stride, float* c,
                int64_t c_stride, bool add) {
  columns_from<kTileVectors>(0, m, n, {k, a.data, a.row_stride, a.column_stride, b, b_stride, c, c_stride, add});
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(small_gemm);

void small_gemm(int64_t m, int64_t n, int64_t k, LeftOperand a, const float* b, int64_t b_stride, float* c,
                int64_t c_stride, bool add) {
  HWY_DYNAMIC_DISPATCH(small_gemm)(m, n, k, a, b, b_stride, c, c_stride, add);
}

}  // namespace fsdp::kernels::raw
#endif
