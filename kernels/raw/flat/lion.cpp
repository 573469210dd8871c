#include "kernels/raw/flat/lion.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/lion.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/flat/passes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using passes::all;
using passes::kTag;
using passes::Numbers;

HWY_INLINE void update(Numbers& w, Numbers g, Numbers& m, const LionFactors& f) {
  const Numbers gradient = hn::Mul(g, all(f.gradient));
  const Numbers direction = hn::MulAdd(m, all(f.beta1), hn::Mul(gradient, all(f.rest1)));
  const auto has_sign = hn::Gt(hn::Abs(direction), hn::Zero(kTag));
  // 0 stays 0, and NaN is seen in the weight.
  const Numbers step = hn::IfThenElse(has_sign, hn::CopySign(all(f.lr), direction), direction);
  w = hn::MulSub(w, all(f.keep), step);
  m = hn::MulAdd(m, all(f.beta2), hn::Mul(gradient, all(f.rest2)));
}

void lion_of(float* weight, const float* gradient, float* momentum, int64_t count, LionFactors f) {
  passes::for_each(count, [&](int64_t i, int64_t lanes) HWY_ATTR {
    Numbers w = passes::load(weight + i, lanes), m = passes::load(momentum + i, lanes);
    update(w, passes::load(gradient + i, lanes), m, f);
    passes::store(w, weight + i, lanes);
    passes::store(m, momentum + i, lanes);
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(lion_of);

void lion(float* weight, const float* gradient, float* momentum, int64_t count, const LionFactors& factors) {
  HWY_DYNAMIC_DISPATCH(lion_of)(weight, gradient, momentum, count, factors);
}

}  // namespace fsdp::kernels::raw
#endif
