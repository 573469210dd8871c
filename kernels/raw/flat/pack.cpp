#include "kernels/raw/flat/pack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/pack.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

template <class T>
HWY_INLINE void scale_of(float* HWY_RESTRICT to, const T* HWY_RESTRICT from, float scale, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) simd::store(to + i, simd::load(from + i) * scale);
  for (; i < count; ++i) to[i] = to_float(from[i]) * scale;
}

// The tail goes through the same vectors: an element's bits do not depend on its place.
template <class T>
HWY_INLINE void add_scaled_of(float* HWY_RESTRICT to, const T* HWY_RESTRICT from, float scale, int64_t count) {
  const simd::Float factor = simd::broadcast(scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    simd::store(to + i, simd::mul_add(simd::load(from + i), factor, simd::load(to + i)));
  if (i == count) return;
  const simd::Float added =
      simd::mul_add(simd::load_first(from + i, count - i), factor, simd::load_first(to + i, count - i));
  simd::store_first(to + i, added, count - i);
}

void scale_f32(float* to, const float* from, float scale, int64_t count) { scale_of(to, from, scale, count); }
void scale_bf16(float* to, const Bf16* from, float scale, int64_t count) { scale_of(to, from, scale, count); }
void add_scaled_f32(float* to, const float* from, float scale, int64_t count) { add_scaled_of(to, from, scale, count); }
void add_scaled_bf16(float* to, const Bf16* from, float scale, int64_t count) { add_scaled_of(to, from, scale, count); }

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(scale_f32);
HWY_EXPORT(scale_bf16);
HWY_EXPORT(add_scaled_f32);
HWY_EXPORT(add_scaled_bf16);

void scale_to(float* to, const float* from, float scale, int64_t count) {
  HWY_DYNAMIC_DISPATCH(scale_f32)(to, from, scale, count);
}
void scale_to(float* to, const Bf16* from, float scale, int64_t count) {
  HWY_DYNAMIC_DISPATCH(scale_bf16)(to, from, scale, count);
}
void add_scaled(float* to, const float* from, float scale, int64_t count) {
  HWY_DYNAMIC_DISPATCH(add_scaled_f32)(to, from, scale, count);
}
void add_scaled(float* to, const Bf16* from, float scale, int64_t count) {
  HWY_DYNAMIC_DISPATCH(add_scaled_bf16)(to, from, scale, count);
}

}  // namespace fsdp::kernels::raw
#endif
