#include "kernels/raw/products/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/products/gemm.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/products/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

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
