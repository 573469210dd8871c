#include "kernels/raw/attention/softmax_weights.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/attention/softmax_weights.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

HWY_INLINE float highest(const float* x, int64_t count) {
  Float best = simd::broadcast(kLowest);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) best = simd::max(simd::load(x + i), best);  // NaN is not above anything
  float top = simd::max(best);
  for (; i < count; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

HWY_INLINE Float weights(Float x, float top, float scale) {
  return simd::where_above_lowest(x, simd::exp((x - top) * scale));
}

int64_t softmax_weights_of(const float* x, int64_t count, float scale, float* to) {
  const float top = highest(x, count);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) simd::store(to + i, weights(simd::load(x + i), top, scale));
  if (i < count) simd::store_first(to + i, weights(simd::load_first(x + i, count - i, kLowest), top, scale), count - i);
  return top > kLowest ? std::find(x, x + count, top) - x : -1;
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(softmax_weights_of);

int64_t softmax_weights(const float* x, int64_t count, float scale, float* to) {
  return HWY_DYNAMIC_DISPATCH(softmax_weights_of)(x, count, scale, to);
}

}  // namespace fsdp::kernels::raw
#endif
