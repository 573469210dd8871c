#include "kernels/raw/products/tiled_gradient.h"

#include <algorithm>

#include "kernels/raw/products/amx.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/products/tiled_gradient.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

constexpr int64_t kDepth = 1024;  // at a time: C is read and written once for each
constexpr int64_t kRows = 64;     // of C at a time, whose part of A stays in the second-level cache
constexpr int64_t kColumns = 128;
constexpr int64_t kLeftStride = kDepth / 2 + kLanes;  // rows are spread over the sets of the first-level cache

int64_t scratch_of(int64_t n) { return whole_lanes(n) * kDepth / 2 + kRows * (kLeftStride + kColumns); }

// Numbers i .. i + 15 of two rows, those beyond `count` or of a row that is not there as zeros, in pairs.
HWY_INLINE Float pairs_of(const Bf16* row, const Bf16* next, int64_t i, int64_t count) {
  if (i + kLanes <= count)
    return simd::join_upper_halves(simd::load(row + i), next != nullptr ? simd::load(next + i) : simd::zero());
  return simd::join_upper_halves(simd::load_first(row + i, count - i),
                                 next != nullptr ? simd::load_first(next + i, count - i) : simd::zero());
}

// Of [depth, count], pairs along the depth: [pairs, width].
void pack_right(const Bf16* b, int64_t stride, int64_t depth, int64_t count, float* to) {
  const int64_t width = whole_lanes(count);
  for (int64_t row = 0; row < depth; row += 2, b += 2 * stride, to += width)
    for (int64_t i = 0; i < width; i += kLanes)
      simd::store(to + i, pairs_of(b, row + 1 < depth ? b + stride : nullptr, i, count));
}

// The same, as [count, pairs] with rows kLeftStride apart; up to 15 pairs of zeros more.
void pack_left(const Bf16* a, int64_t stride, int64_t depth, int64_t count, float* to) {
  alignas(64) float square[kLanes * kLanes];
  for (int64_t first = 0; first < depth; first += 2 * kLanes)
    for (int64_t i = 0; i < count; i += kLanes) {
      for (int64_t pair = 0; pair < kLanes; ++pair) {
        const int64_t row = first + 2 * pair;
        const Bf16* from = a + row * stride;
        simd::store(square + pair * kLanes,
                    row < depth ? pairs_of(from, row + 1 < depth ? from + stride : nullptr, i, count) : simd::zero());
      }
      simd::transpose(square, kLanes, to + i * kLeftStride + first / 2, kLeftStride);
    }
}

HWY_INLINE void add_scaled(const float* sums, int64_t rows, int64_t width, int64_t count, float scale, float* c,
                           int64_t stride, bool add) {
  for (int64_t row = 0; row < rows; ++row, sums += width, c += stride) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const Float value = simd::load(sums + i) * scale;
      simd::store(c + i, add ? value + simd::load(c + i) : value);
    }
    for (; i < count; ++i) c[i] = sums[i] * scale + (add ? c[i] : 0);
  }
}

void tiled_gradient(int64_t m, int64_t n, int64_t depth, const Bf16* a, int64_t a_stride, const Bf16* b,
                    int64_t b_stride, float scale, float* c, int64_t c_stride, bool add, float* scratch) {
  float *right = scratch, *left = right + whole_lanes(n) * kDepth / 2, *sums = left + kRows * kLeftStride;
  for (int64_t first = 0; first < depth; first += kDepth, a += kDepth * a_stride, b += kDepth * b_stride) {
    const int64_t rows_of_a = std::min(kDepth, depth - first), pairs = (rows_of_a + 1) / 2;
    for (int64_t column = 0; column < n; column += kColumns)
      pack_right(b + column, b_stride, rows_of_a, std::min(kColumns, n - column), right + column * pairs);
    for (int64_t row = 0; row < m; row += kRows) {
      const int64_t rows = std::min(kRows, m - row);
      pack_left(a + row, a_stride, rows_of_a, rows, left);
      for (int64_t column = 0; column < n; column += kColumns) {
        const int64_t count = std::min(kColumns, n - column), width = whole_lanes(count);
        amx::pair_gemm(rows, width, pairs, {reinterpret_cast<const Bf16Pair*>(left), kLeftStride, 1},
                       reinterpret_cast<const Bf16Pair*>(right + column * pairs), width, sums, width, false);
        add_scaled(sums, rows, width, count, scale, c + row * c_stride + column, c_stride, add || first > 0);
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(scratch_of);
HWY_EXPORT(tiled_gradient);

int64_t tiled_gradient_scratch(int64_t n) { return HWY_DYNAMIC_DISPATCH(scratch_of)(n); }

void tiled_gradient(int64_t m, int64_t n, int64_t depth, const Bf16* a, int64_t a_stride, const Bf16* b,
                    int64_t b_stride, float scale, float* c, int64_t c_stride, bool add, float* scratch) {
  HWY_DYNAMIC_DISPATCH(tiled_gradient)(m, n, depth, a, a_stride, b, b_stride, scale, c, c_stride, add, scratch);
}

}  // namespace fsdp::kernels::raw
#endif
