#include "kernels/raw/rows/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/rows/rope.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

template <class T, bool kInverse>
HWY_INLINE void rotate(Float x1, Float x2, Float c1, Float c2, Float s1, Float s2, Float& y1, Float& y2) {
  if constexpr (kInverse) {
    y1 = simd::round_to<T>(x1 * c1) + simd::round_to<T>(x2 * s2);
    y2 = simd::round_to<T>(x2 * c2) - simd::round_to<T>(x1 * s1);
  } else {
    y1 = simd::round_to<T>(x1 * c1) - simd::round_to<T>(x2 * s1);
    y2 = simd::round_to<T>(x2 * c2) + simd::round_to<T>(x1 * s2);
  }
}

// All heads of one position: x and y [heads, dim], cos and sin [dim].
template <class T, bool kInverse>
HWY_INLINE void rotate_position(const T* x, const T* cos, const T* sin, T* y, int64_t heads, int64_t dim) {
  const int64_t half = dim / 2, whole = half - half % kLanes, rest = half - whole;
  Float y1, y2;
  for (int64_t head = 0; head < heads; ++head, x += dim, y += dim) {
    for (int64_t i = 0; i < whole; i += kLanes) {
      rotate<T, kInverse>(simd::load(x + i), simd::load(x + half + i), simd::load(cos + i), simd::load(cos + half + i),
                          simd::load(sin + i), simd::load(sin + half + i), y1, y2);
      simd::store_result(y + i, y1);
      simd::store_result(y + half + i, y2);
    }
    if (rest == 0) continue;
    const int64_t i = whole, j = half + whole;
    rotate<T, kInverse>(simd::load_first(x + i, rest), simd::load_first(x + j, rest), simd::load_first(cos + i, rest),
                        simd::load_first(cos + j, rest), simd::load_first(sin + i, rest),
                        simd::load_first(sin + j, rest), y1, y2);
    simd::store_first(y + i, y1, rest);
    simd::store_first(y + j, y2, rest);
  }
}

template <class T, bool kInverse>
HWY_INLINE void rotate_positions(const RopePositions<T>& x) {
  for (int64_t i = 0; i < x.positions; ++i)
    rotate_position<T, kInverse>(x.from + i * x.from_stride, x.cos + i * x.dim, x.sin + i * x.dim,
                                 x.to + i * x.to_stride, x.heads, x.dim);
}

void rope_f32(const RopePositions<float>& x) { rotate_positions<float, false>(x); }
void rope_bf16(const RopePositions<Bf16>& x) { rotate_positions<Bf16, false>(x); }
void inverse_f32(const RopePositions<float>& x) { rotate_positions<float, true>(x); }
void inverse_bf16(const RopePositions<Bf16>& x) { rotate_positions<Bf16, true>(x); }

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(rope_f32);
HWY_EXPORT(rope_bf16);
HWY_EXPORT(inverse_f32);
HWY_EXPORT(inverse_bf16);

void rope(const RopePositions<float>& x, bool inverse) {
  inverse ? HWY_DYNAMIC_DISPATCH(inverse_f32)(x) : HWY_DYNAMIC_DISPATCH(rope_f32)(x);
}
void rope(const RopePositions<Bf16>& x, bool inverse) {
  inverse ? HWY_DYNAMIC_DISPATCH(inverse_bf16)(x) : HWY_DYNAMIC_DISPATCH(rope_bf16)(x);
}

}  // namespace fsdp::kernels::raw
#endif
