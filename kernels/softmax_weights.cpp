#include "kernels/softmax_weights.h"

#include <algorithm>
#include <limits>

#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

using simd::Float;
using simd::kLanes;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

FSDP_ALWAYS_INLINE float highest(const float* x, int64_t count) {
  Float best = simd::broadcast(kLowest);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) best = simd::max(simd::load(x + i), best);  // NaN is not above anything
  float top = simd::max(best);
  for (; i < count; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

FSDP_ALWAYS_INLINE Float weights(Float x, float top, float scale) {
  return x > simd::broadcast(kLowest) ? simd::exp((x - top) * scale) : Float{};
}

}  // namespace

FSDP_SIMD_CLONES int64_t softmax_weights(const float* x, int64_t count, float scale, float* to) {
  const float top = highest(x, count);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) simd::store(to + i, weights(simd::load(x + i), top, scale));
  if (i < count) simd::store_first(to + i, weights(simd::load_first(x + i, count - i, kLowest), top, scale), count - i);
  return top > kLowest ? std::find(x, x + count, top) - x : -1;
}

}  // namespace fsdp::kernels
