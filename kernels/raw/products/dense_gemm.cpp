#include "kernels/raw/products/dense_gemm.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/products/dense_gemm.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/cpu_isa.h"
#include "kernels/raw/products/gemm_tile-inl.h"
#include "kernels/raw/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

// Of A at a time: in the second-level cache, with a panel of B beside them.
constexpr int64_t kRows = 96;
// Of A at a time, at most. A panel of so many rows fits the first-level cache, but not where it has 64 columns: there
// it may be deeper, so that C is read and written less often, if the second-level cache has room for it beside A.
constexpr int64_t kFlat = 256, kDeep = 768;
constexpr int64_t kLargeCache = int64_t{2} << 20;
constexpr int64_t kSpread = 16;  // rows of A lie further apart by this: spread over the sets of the first-level cache
constexpr int64_t kPackedNumel = 1 << 20;  // of B at a time, or a panel of it: from the third-level cache
constexpr int64_t kLeastColumns = 128;     // of B at a time, lest A is packed too often
constexpr int64_t kPanel = kTileVectors * kNativeLanes;
// While a panel is multiplied, the next one comes nearer, in as many parts as its rows have tiles.
constexpr int64_t kAhead = kPanel * kLanes * kTileRows / kRows;

int64_t columns_at_a_time(int64_t n, int64_t k) {
  const int64_t panels = std::max(kLeastColumns, kPackedNumel / std::max<int64_t>(1, k)) / kPanel;
  return std::min((n + kPanel - 1) / kPanel, panels) * kPanel;
}

int64_t most_depth() { return kNativeLanes == 16 && second_level_cache() >= kLargeCache ? kDeep : kFlat; }

int64_t step_of(int64_t k, int64_t most) {
  if (most == kFlat || k <= most) return most;
  const int64_t parts = (k + most - 1) / most;
  return whole_lanes((k + parts - 1) / parts);
}

int64_t depth_at_a_time(int64_t k) { return step_of(k, most_depth()); }

int64_t scratch_of(int64_t n, int64_t k) {
  return columns_at_a_time(n, k) * (k + kRows) + kRows * (most_depth() + kSpread);
}

// Whole vectors of the columns that are left for a panel.
HWY_INLINE int64_t width_of(int64_t count) {
  return std::min(kPanel, (count + kNativeLanes - 1) / kNativeLanes * kNativeLanes);
}

// Rows of columns that lie together.
template <class T>
HWY_INLINE void pack_rows(const T* b, int64_t row_stride, int64_t k, int64_t count, float* to) {
  const int64_t width = width_of(count), used = std::min(count, width);
  for (int64_t i = 0; i < k; ++i, b += row_stride, to += width) {
    int64_t column = 0;
    for (; column + kNativeLanes <= used; column += kNativeLanes) {
      simd::One value;
      simd::load_to(value, b + column);
      simd::store(to + column, value);
    }
    for (; column < width; ++column) to[column] = column < used ? to_float(b[column]) : 0;
  }
}

// Columns whose rows lie together.
template <class T>
HWY_INLINE void pack_columns(const T* b, int64_t column_stride, int64_t k, int64_t count, float* to) {
  const int64_t width = width_of(count);
  alignas(64) float square[kNativeLanes * kNativeLanes];
  for (int64_t first = 0; first < width; first += kNativeLanes, b += kNativeLanes * column_stride, to += kNativeLanes) {
    const int64_t used = std::min<int64_t>(kNativeLanes, count - first);
    int64_t i = 0;
    if (used == kNativeLanes)
      for (; i + kNativeLanes <= k; i += kNativeLanes) {
        if constexpr (std::is_same_v<T, float>) {
          simd::transpose_native(b + i, column_stride, to + i * width, width);
        } else {
          for (int64_t lane = 0; lane < kNativeLanes; ++lane) {
            simd::One value;
            simd::load_to(value, b + lane * column_stride + i);
            simd::store(square + lane * kNativeLanes, value);
          }
          simd::transpose_native(square, kNativeLanes, to + i * width, width);
        }
      }
    for (; i < k; ++i)
      for (int64_t lane = 0; lane < kNativeLanes; ++lane)
        to[i * width + lane] = lane < used ? to_float(b[lane * column_stride + i]) : 0;
  }
}

// B's rows from `row` and columns from `first` on, as part of a panel: [depth, width].
template <class T>
HWY_NOINLINE void pack_right_of(const Operand& b, int64_t row, int64_t first, int64_t depth, int64_t count, float* to) {
  const T* from = static_cast<const T*>(b.data) + row * b.row_stride + first * b.column_stride;
  if (b.column_stride == 1)
    pack_rows(from, b.row_stride, depth, count, to);
  else
    pack_columns(from, b.column_stride, depth, count, to);
}

HWY_INLINE void pack_right(const Operand& b, int64_t row, int64_t first, int64_t depth, int64_t count, float* to) {
  b.is_bf16 ? pack_right_of<Bf16>(b, row, first, depth, count, to)
            : pack_right_of<float>(b, row, first, depth, count, to);
}

// Squares of 16 of a matrix whose columns lie together, as rows.
template <class T>
HWY_INLINE void transpose_scaled(const T* from, int64_t stride, int64_t rows, int64_t depth, float scale, float* to,
                                 int64_t to_stride) {
  alignas(64) float square[kLanes * kLanes];
  for (int64_t i = 0; i < depth; i += kLanes, from += kLanes * stride)
    for (int64_t row = 0; row < rows; row += kLanes) {
      float* target = to + row * to_stride + i;
      if (i + kLanes <= depth && row + kLanes <= rows) {
        for (int64_t j = 0; j < kLanes; ++j)
          simd::store(square + j * kLanes, simd::load(from + j * stride + row) * scale);
        simd::transpose(square, kLanes, target, to_stride);
        continue;
      }
      for (int64_t j = 0; j < std::min(kLanes, depth - i); ++j)
        for (int64_t r = 0; r < std::min(kLanes, rows - row); ++r)
          target[r * to_stride + j] = to_float(from[j * stride + row + r]) * scale;
    }
}

template <class T>
HWY_INLINE void copy_scaled(const T* from, int64_t stride, int64_t rows, int64_t depth, float scale, float* to,
                            int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row, from += stride, to += to_stride) {
    int64_t i = 0;
    for (; i + kLanes <= depth; i += kLanes) simd::store(to + i, simd::load(from + i) * scale);
    for (; i < depth; ++i) to[i] = to_float(from[i]) * scale;
  }
}

// A's rows from `row` and columns from `first` on, as rows `stride` apart.
template <class T>
HWY_NOINLINE void pack_left_of(const Operand& a, int64_t row, int64_t first, int64_t rows, int64_t depth, float scale,
                               float* to, int64_t stride) {
  const T* from = static_cast<const T*>(a.data) + row * a.row_stride + first * a.column_stride;
  if (a.column_stride == 1)
    copy_scaled(from, a.row_stride, rows, depth, scale, to, stride);
  else
    transpose_scaled(from, a.column_stride, rows, depth, scale, to, stride);
}

HWY_INLINE void pack_left(const Operand& a, int64_t row, int64_t first, int64_t rows, int64_t depth, float scale,
                          float* to, int64_t stride) {
  a.is_bf16 ? pack_left_of<Bf16>(a, row, first, rows, depth, scale, to, stride)
            : pack_left_of<float>(a, row, first, rows, depth, scale, to, stride);
}

template <int kVectors>
HWY_INLINE void panel_of(int64_t vectors, int64_t m, const Block& x) {
  if constexpr (kVectors > 1)
    if (vectors < kVectors) return panel_of<kVectors - 1>(vectors, m, x);
  columns<kVectors, kAhead>(m, x);
}

// C = A B for a block of A, whose rows are kMostDepth and a little apart, and one panel of B.
template <int64_t kMostDepth>
HWY_NOINLINE void multiply_panel(int64_t m, int64_t depth, const float* a, const float* b, int64_t width, float* c,
                                 int64_t c_stride, bool add, const float* next) {
  panel_of<kTileVectors>(width / kNativeLanes, m,
                         {depth, a, kMostDepth + kSpread, 1, b, width, c, c_stride, add, next});
}

// From sums [m, width] with a stride of `width` to C.
template <class Y>
HWY_INLINE void finish(const float* sums, int64_t m, int64_t width, int64_t count, Y* c, int64_t c_stride, bool add) {
  for (int64_t row = 0; row < m; ++row, sums += width, c += c_stride) {
    int64_t column = 0;
    if constexpr (std::is_same_v<Y, Bf16>)
      for (; column + kLanes <= count; column += kLanes) simd::store(c + column, simd::load(sums + column));
    for (; column < count; ++column) c[column] = from_float<Y>(sums[column] + (add ? to_float(c[column]) : 0));
  }
}

struct Scratch {
  float* packed;  // panels of B
  float* left;    // a block of A
  float* sums;
};

// Some rows of C, of the columns `first` .. `first` + count - 1. The first rows pack B's panels, which are in the
// nearest cache then.
template <int64_t kMostDepth, class Y>
HWY_INLINE void multiply_rows(int64_t rows, int64_t row, int64_t first, int64_t count, int64_t k, const Operand& a,
                              const Operand& b, float scale, Y* c, int64_t c_stride, bool add, const Scratch& scratch) {
  const auto [packed, left, sums] = scratch;
  const int64_t step = step_of(k, kMostDepth);
  for (int64_t i = 0; i == 0 || i < k; i += step) {  // once where k is 0: C is zero then
    const int64_t depth = std::min(step, k - i);
    pack_left(a, row, i, rows, depth, scale, left, kMostDepth + kSpread);
    for (int64_t column = 0; column < count; column += kPanel) {
      const int64_t width = width_of(count - column), used = std::min(width, count - column);
      float* right = packed + column * k + i * width;
      const float* next = column + kPanel < count ? right + kPanel * k : packed;
      if (row == 0) pack_right(b, i, first + column, depth, used, right);
      Y* to = c + row * c_stride + first + column;
      if constexpr (std::is_same_v<Y, float>) {
        if (used == width) {
          multiply_panel<kMostDepth>(rows, depth, left, right, width, to, c_stride, add || i > 0, next);
          continue;
        }
      }
      multiply_panel<kMostDepth>(rows, depth, left, right, width, sums + column * kRows, width, i > 0, next);
      if (i + depth == k) finish(sums + column * kRows, rows, width, used, to, c_stride, add);
    }
  }
}

template <int64_t kMostDepth, class Y>
HWY_INLINE void multiply_all(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, float scale, Y* c,
                             int64_t c_stride, bool add, float* scratch) {
  const int64_t at_a_time = columns_at_a_time(n, k);
  float* left = scratch + at_a_time * k;
  const Scratch parts = {scratch, left, left + kRows * (kMostDepth + kSpread)};
  for (int64_t first = 0; first < n; first += at_a_time) {
    const int64_t count = std::min(at_a_time, n - first);
    for (int64_t row = 0; row < m; row += kRows)
      multiply_rows<kMostDepth>(std::min(kRows, m - row), row, first, count, k, a, b, scale, c, c_stride, add, parts);
  }
}

template <class Y>
HWY_INLINE void dense_gemm_of(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, float scale, Y* c,
                              int64_t c_stride, bool add, float* scratch) {
  if constexpr (kNativeLanes == 16)
    if (most_depth() == kDeep) return multiply_all<kDeep>(m, n, k, a, b, scale, c, c_stride, add, scratch);
  multiply_all<kFlat>(m, n, k, a, b, scale, c, c_stride, add, scratch);
}

void dense_gemm_f32(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, float scale, float* c,
                    int64_t c_stride, bool add, float* scratch) {
  dense_gemm_of(m, n, k, a, b, scale, c, c_stride, add, scratch);
}
void dense_gemm_bf16(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, float scale, Bf16* c,
                     int64_t c_stride, float* scratch) {
  dense_gemm_of(m, n, k, a, b, scale, c, c_stride, false, scratch);
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(depth_at_a_time);
HWY_EXPORT(scratch_of);
HWY_EXPORT(dense_gemm_f32);
HWY_EXPORT(dense_gemm_bf16);

int64_t dense_gemm_depth(int64_t k) { return HWY_DYNAMIC_DISPATCH(depth_at_a_time)(k); }

int64_t dense_gemm_scratch(int64_t n, int64_t k) { return HWY_DYNAMIC_DISPATCH(scratch_of)(n, k); }

void dense_gemm(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, float scale, float* c,
                int64_t c_stride, bool add, float* scratch) {
  HWY_DYNAMIC_DISPATCH(dense_gemm_f32)(m, n, k, a, b, scale, c, c_stride, add, scratch);
}
void dense_gemm(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, float scale, Bf16* c,
                int64_t c_stride, float* scratch) {
  HWY_DYNAMIC_DISPATCH(dense_gemm_bf16)(m, n, k, a, b, scale, c, c_stride, scratch);
}

}  // namespace fsdp::kernels::raw
#endif
