#include "kernels/raw/products/panels.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/products/panels.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

void pack_panel(const Word* x, int64_t stride, int64_t rows, int64_t depth, Word* to, int64_t width) {
  const int64_t whole = depth - depth % kLanes;
  for (int64_t row = 0; row < width; row += kLanes, x += kLanes * stride, to += kLanes) {
    const int64_t count = std::clamp<int64_t>(rows - row, 0, kLanes);
    int64_t i = 0;
    if (count == kLanes)
      for (; i < whole; i += kLanes) simd::transpose(x + i, stride, to + i * width, width);
    for (; i < depth; ++i)
      for (int64_t lane = 0; lane < kLanes; ++lane) to[i * width + lane] = lane < count ? x[lane * stride + i] : 0;
  }
}

template <class Y>
HWY_INLINE void unpack_panel_of(const float* sums, int64_t outputs, int64_t width, int64_t rows, Y* y, int64_t stride) {
  alignas(64) float square[kLanes * kLanes];
  for (int64_t output = 0; output < outputs; output += kLanes) {
    const int64_t count = std::min(kLanes, outputs - output);
    for (int64_t row = 0; row < rows; row += kLanes) {
      if (count == kLanes) {
        simd::transpose(sums + output * width + row, width, square, kLanes);
      } else {
        for (int64_t i = 0; i < count; ++i)
          for (int64_t lane = 0; lane < kLanes; ++lane)
            square[lane * kLanes + i] = sums[(output + i) * width + row + lane];
      }
      for (int64_t lane = 0; lane < std::min(kLanes, rows - row); ++lane) {
        Y* to = y + (row + lane) * stride + output;
        const simd::Float values = simd::load(square + lane * kLanes);
        count == kLanes ? simd::store(to, values) : simd::store_first(to, values, count);
      }
    }
  }
}

void unpack_panel_f32(const float* sums, int64_t outputs, int64_t width, int64_t rows, float* y, int64_t stride) {
  unpack_panel_of(sums, outputs, width, rows, y, stride);
}
void unpack_panel_bf16(const float* sums, int64_t outputs, int64_t width, int64_t rows, Bf16* y, int64_t stride) {
  unpack_panel_of(sums, outputs, width, rows, y, stride);
}

template <class From, class To>
HWY_INLINE void convert(const From* from, To* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) simd::store(to + i, simd::load(from + i));
  for (; i < count; ++i) to[i] = from_float<To>(to_float(from[i]));
}

void widen(const Bf16* from, float* to, int64_t count) { convert(from, to, count); }
void narrow(const float* from, Bf16* to, int64_t count) { convert(from, to, count); }
void narrow_rows(const float* from, int64_t from_stride, int64_t rows, int64_t count, Bf16* to, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row) convert(from + row * from_stride, to + row * stride, count);
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(pack_panel);
HWY_EXPORT(unpack_panel_f32);
HWY_EXPORT(unpack_panel_bf16);
HWY_EXPORT(widen);
HWY_EXPORT(narrow);
HWY_EXPORT(narrow_rows);

void pack_panel(const Word* x, int64_t stride, int64_t rows, int64_t depth, Word* to, int64_t width) {
  HWY_DYNAMIC_DISPATCH(pack_panel)(x, stride, rows, depth, to, width);
}
void unpack_panel(const float* sums, int64_t outputs, int64_t width, int64_t rows, float* y, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(unpack_panel_f32)(sums, outputs, width, rows, y, stride);
}
void unpack_panel(const float* sums, int64_t outputs, int64_t width, int64_t rows, Bf16* y, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(unpack_panel_bf16)(sums, outputs, width, rows, y, stride);
}
void widen(const Bf16* from, float* to, int64_t count) { HWY_DYNAMIC_DISPATCH(widen)(from, to, count); }
void narrow(const float* from, Bf16* to, int64_t count) { HWY_DYNAMIC_DISPATCH(narrow)(from, to, count); }
void narrow_rows(const float* from, int64_t from_stride, int64_t rows, int64_t count, Bf16* to, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(narrow_rows)(from, from_stride, rows, count, to, stride);
}

}  // namespace fsdp::kernels::raw
#endif
