#include "kernels/raw/flat/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/sgd.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

// The scaled gradient is rounded on its own, as if it had been scaled before.
HWY_INLINE Float with_decay(Float w, Float g, const SGDFactors& f) {
  return simd::mul_add(w, simd::broadcast(f.weight_decay), g * f.gradient);
}

HWY_INLINE void update(Float& w, Float g, const SGDFactors& f) {
  w = simd::neg_mul_add(with_decay(w, g, f), simd::broadcast(f.lr), w);
}

HWY_INLINE void update(Float& w, Float g, Float& buffer, const SGDFactors& f, bool nesterov) {
  const Float gradient = with_decay(w, g, f);
  buffer = simd::mul_add(buffer, simd::broadcast(f.momentum), gradient * f.keep);
  const Float step = nesterov ? simd::mul_add(buffer, simd::broadcast(f.look_ahead), gradient) : buffer;
  w = simd::neg_mul_add(step, simd::broadcast(f.lr), w);
}

void plain(float* weight, const float* gradient, int64_t count, SGDFactors f) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Float w = simd::load(weight + i);
    update(w, simd::load(gradient + i), f);
    simd::store(weight + i, w);
  }
  if (i == count) return;
  Float w = simd::load_first(weight + i, count - i);
  update(w, simd::load_first(gradient + i, count - i), f);
  simd::store_first(weight + i, w, count - i);
}

void with_momentum(float* weight, const float* gradient, float* buffer, int64_t count, SGDFactors f, bool nesterov) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Float w = simd::load(weight + i), b = simd::load(buffer + i);
    update(w, simd::load(gradient + i), b, f, nesterov);
    simd::store(weight + i, w);
    simd::store(buffer + i, b);
  }
  if (i == count) return;
  Float w = simd::load_first(weight + i, count - i), b = simd::load_first(buffer + i, count - i);
  update(w, simd::load_first(gradient + i, count - i), b, f, nesterov);
  simd::store_first(weight + i, w, count - i);
  simd::store_first(buffer + i, b, count - i);
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(plain);
HWY_EXPORT(with_momentum);

void sgd(float* weight, const float* gradient, float* buffer, int64_t count, const SGDFactors& factors, bool nesterov) {
  if (buffer == nullptr) return HWY_DYNAMIC_DISPATCH(plain)(weight, gradient, count, factors);
  HWY_DYNAMIC_DISPATCH(with_momentum)(weight, gradient, buffer, count, factors, nesterov);
}

}  // namespace fsdp::kernels::raw
#endif
