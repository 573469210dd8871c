#include "kernels/raw/products/gemv.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/products/gemv.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::kNativeLanes;
using simd::Native;
using simd::Tag;

constexpr int64_t kQuarter = 4;  // numbers of a row that are loaded at once, as many rows as a block of a register has

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE Native add_quarter(const float* a, int64_t, const float* x, Native sum) {
  const Tag tag;
  for (int64_t i = 0; i < kQuarter; ++i) sum = hn::MulAdd(hn::Set(tag, a[i]), hn::Set(tag, x[i]), sum);
  return sum;
}
#else
// Quarters of four rows, one row's in each block of a register: row 0, 4, 8, ... of those that begin at `a`.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D tag, const float* a, int64_t stride) {
  if constexpr (hn::MaxLanes(D()) == kQuarter) {
    return hn::LoadU(tag, a);
  } else {
    const hn::Half<D> half;
    const int64_t rows = static_cast<int64_t>(hn::MaxLanes(half));
    return hn::Combine(tag, load_blocks(half, a + rows * stride, stride), load_blocks(half, a, stride));
  }
}

// Of as many rows as a register has lanes, the next four numbers of each, times those of x: rows are lanes, which get
// one product after the other, as columns of a matrix product do.
HWY_INLINE Native add_quarter(const float* a, int64_t stride, const float* x, Native sum) {
  const Tag tag;
  const Native first = load_blocks(tag, a, stride), second = load_blocks(tag, a + stride, stride);
  const Native third = load_blocks(tag, a + 2 * stride, stride), fourth = load_blocks(tag, a + 3 * stride, stride);
  const hn::Repartition<double, Tag> pairs;  // two numbers of a block that stay together
  const auto low = hn::BitCast(pairs, hn::InterleaveLower(tag, first, second));
  const auto more_low = hn::BitCast(pairs, hn::InterleaveLower(tag, third, fourth));
  const auto high = hn::BitCast(pairs, hn::InterleaveUpper(tag, first, second));
  const auto more_high = hn::BitCast(pairs, hn::InterleaveUpper(tag, third, fourth));
  sum = hn::MulAdd(hn::BitCast(tag, hn::InterleaveLower(pairs, low, more_low)), hn::Set(tag, x[0]), sum);
  sum = hn::MulAdd(hn::BitCast(tag, hn::InterleaveUpper(pairs, low, more_low)), hn::Set(tag, x[1]), sum);
  sum = hn::MulAdd(hn::BitCast(tag, hn::InterleaveLower(pairs, high, more_high)), hn::Set(tag, x[2]), sum);
  return hn::MulAdd(hn::BitCast(tag, hn::InterleaveUpper(pairs, high, more_high)), hn::Set(tag, x[3]), sum);
}
#endif

// Rows of `kGroups` registers, whose sums wait for each other's multiplications.
template <int kGroups>
HWY_INLINE void some_rows(int64_t k, const float* a, int64_t stride, const float* x, float* y, bool add) {
  const Tag tag;
  Native sums[kGroups];
#pragma GCC unroll 8
  for (int group = 0; group < kGroups; ++group) sums[group] = hn::Zero(tag);
  int64_t i = 0;
  // A line of each row at a time: rows are often a power of two apart, and few of their lines fit a cache together.
  for (; i + kLanes <= k; i += kLanes) {
#pragma GCC unroll 8
    for (int group = 0; group < kGroups; ++group)
#pragma GCC unroll 8
      for (int64_t quarter = 0; quarter < kLanes; quarter += kQuarter)
        sums[group] =
            add_quarter(a + group * kNativeLanes * stride + i + quarter, stride, x + i + quarter, sums[group]);
  }
  for (; i + kQuarter <= k; i += kQuarter) {
#pragma GCC unroll 8
    for (int group = 0; group < kGroups; ++group)
      sums[group] = add_quarter(a + group * kNativeLanes * stride + i, stride, x + i, sums[group]);
  }
  for (; i < k; ++i) {
    for (int group = 0; group < kGroups; ++group) {
      alignas(64) float column[kNativeLanes];
      for (int lane = 0; lane < kNativeLanes; ++lane) column[lane] = a[(group * kNativeLanes + lane) * stride + i];
      sums[group] = hn::MulAdd(hn::Load(tag, column), hn::Set(tag, x[i]), sums[group]);
    }
  }
#pragma GCC unroll 8
  for (int group = 0; group < kGroups; ++group) {
    float* to = y + group * kNativeLanes;
    hn::StoreU(add ? hn::Add(sums[group], hn::LoadU(tag, to)) : sums[group], tag, to);
  }
}

// Fewer than a register has lanes: the last one stands for those that are not there.
void last_rows(int64_t m, int64_t k, const float* a, int64_t stride, const float* x, float* y, bool add) {
  const Tag tag;
  Native sum = hn::Zero(tag);
  alignas(64) float lanes[kNativeLanes];
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t lane = 0; lane < kNativeLanes; ++lane) lanes[lane] = a[std::min(lane, m - 1) * stride + i];
    sum = hn::MulAdd(hn::Load(tag, lanes), hn::Set(tag, x[i]), sum);
  }
  hn::Store(sum, tag, lanes);
  for (int64_t row = 0; row < m; ++row) y[row] = add ? lanes[row] + y[row] : lanes[row];
}

void small_gemv(int64_t m, int64_t k, const float* a, int64_t a_stride, const float* x, float* y, bool add) {
  constexpr int kGroups = 2;
  constexpr int64_t kRows = kGroups * kNativeLanes;
  int64_t row = 0;
  for (; row + kRows <= m; row += kRows) some_rows<kGroups>(k, a + row * a_stride, a_stride, x, y + row, add);
  for (; row + kNativeLanes <= m; row += kNativeLanes) some_rows<1>(k, a + row * a_stride, a_stride, x, y + row, add);
  if (row < m) last_rows(m - row, k, a + row * a_stride, a_stride, x, y + row, add);
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(small_gemv);

void small_gemv(int64_t m, int64_t k, const float* a, int64_t a_stride, const float* x, float* y, bool add) {
  HWY_DYNAMIC_DISPATCH(small_gemv)(m, k, a, a_stride, x, y, add);
}

}  // namespace fsdp::kernels::raw
#endif
