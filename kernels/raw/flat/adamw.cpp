#include "kernels/raw/flat/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/adamw.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

HWY_INLINE void update(Float& w, Float g, Float& m, Float& v, const AdamWFactors& f) {
  const Float gradient = g * f.gradient;
  m = simd::mul_add(m, simd::broadcast(f.beta1), gradient * f.rest1);
  v = simd::mul_add(v, simd::broadcast(f.beta2), gradient * f.rest2 * gradient);
  const Float root = simd::mul_add(simd::sqrt(v), simd::broadcast(f.root_scale), simd::broadcast(f.eps));
  w = w * f.keep - m * f.step_size / root;
}

void adamw_of(float* weight, const float* gradient, float* m, float* v, int64_t count, AdamWFactors f) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Float w = simd::load(weight + i), first = simd::load(m + i), second = simd::load(v + i);
    update(w, simd::load(gradient + i), first, second, f);
    simd::store(weight + i, w);
    simd::store(m + i, first);
    simd::store(v + i, second);
  }
  if (i == count) return;
  const int64_t rest = count - i;
  Float w = simd::load_first(weight + i, rest), first = simd::load_first(m + i, rest),
        second = simd::load_first(v + i, rest);
  update(w, simd::load_first(gradient + i, rest), first, second, f);
  simd::store_first(weight + i, w, rest);
  simd::store_first(m + i, first, rest);
  simd::store_first(v + i, second, rest);
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(adamw_of);

void adamw(float* weight, const float* gradient, float* m, float* v, int64_t count, const AdamWFactors& factors) {
  HWY_DYNAMIC_DISPATCH(adamw_of)(weight, gradient, m, v, count, factors);
}

}  // namespace fsdp::kernels::raw
#endif
