#include "kernels/raw/flat/schedule_free.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/schedule_free.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/flat/passes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using passes::all;
using passes::Numbers;

HWY_INLINE void update(Numbers& w, Numbers g, Numbers& z, Numbers& v, const ScheduleFreeFactors& f) {
  const Numbers gradient = hn::Mul(g, all(f.gradient));
  v = hn::MulAdd(v, all(f.beta2), hn::Mul(hn::Mul(gradient, all(f.rest2)), gradient));
  const Numbers root = hn::MulAdd(hn::Sqrt(v), all(f.root_scale), all(f.eps));
  const Numbers direction = hn::MulAdd(w, all(f.weight_decay), hn::Div(gradient, root));
  w = hn::NegMulAdd(direction, all(f.weight_lr), hn::MulAdd(hn::Sub(z, w), all(f.share), w));
  z = hn::NegMulAdd(direction, all(f.lr), z);
}

void schedule_free_of(float* weight, const float* gradient, float* iterate, float* squares, int64_t count,
                      ScheduleFreeFactors f, bool is_first) {
  passes::for_each(count, [&](int64_t i, int64_t lanes) HWY_ATTR {
    Numbers w = passes::load(weight + i, lanes), v = passes::load(squares + i, lanes);
    Numbers z = is_first ? w : passes::load(iterate + i, lanes);
    update(w, passes::load(gradient + i, lanes), z, v, f);
    passes::store(w, weight + i, lanes);
    passes::store(z, iterate + i, lanes);
    passes::store(v, squares + i, lanes);
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(schedule_free_of);

void schedule_free(float* weight, const float* gradient, float* iterate, float* squares, int64_t count,
                   const ScheduleFreeFactors& factors, bool is_first) {
  HWY_DYNAMIC_DISPATCH(schedule_free_of)(weight, gradient, iterate, squares, count, factors, is_first);
}

}  // namespace fsdp::kernels::raw
#endif
