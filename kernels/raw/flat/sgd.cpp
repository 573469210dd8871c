#include "kernels/raw/flat/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/sgd.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/flat/passes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using passes::all;
using passes::Numbers;

// The scaled gradient is rounded on its own, as if it had been scaled before.
HWY_INLINE Numbers with_decay(Numbers w, Numbers g, const SGDFactors& f) {
  return hn::MulAdd(w, all(f.weight_decay), hn::Mul(g, all(f.gradient)));
}

HWY_INLINE void update(Numbers& w, Numbers g, const SGDFactors& f) {
  w = hn::NegMulAdd(with_decay(w, g, f), all(f.lr), w);
}

HWY_INLINE void update(Numbers& w, Numbers g, Numbers& buffer, const SGDFactors& f, bool nesterov) {
  const Numbers gradient = with_decay(w, g, f);
  buffer = hn::MulAdd(buffer, all(f.momentum), hn::Mul(gradient, all(f.keep)));
  const Numbers step = nesterov ? hn::MulAdd(buffer, all(f.look_ahead), gradient) : buffer;
  w = hn::NegMulAdd(step, all(f.lr), w);
}

void plain(float* weight, const float* gradient, int64_t count, SGDFactors f) {
  passes::for_each(count, [&](int64_t i, int64_t lanes) HWY_ATTR {
    Numbers w = passes::load(weight + i, lanes);
    update(w, passes::load(gradient + i, lanes), f);
    passes::store(w, weight + i, lanes);
  });
}

void with_momentum(float* weight, const float* gradient, float* buffer, int64_t count, SGDFactors f, bool nesterov) {
  passes::for_each(count, [&](int64_t i, int64_t lanes) HWY_ATTR {
    Numbers w = passes::load(weight + i, lanes), b = passes::load(buffer + i, lanes);
    update(w, passes::load(gradient + i, lanes), b, f, nesterov);
    passes::store(w, weight + i, lanes);
    passes::store(b, buffer + i, lanes);
  });
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
