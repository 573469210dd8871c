#include "kernels/raw/flat/sgd.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/sgd.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// 256 bits also where registers have 512: memory is the limit, and where it lies in pages of 4 KiB one access for each
// line of the cache took 10 % longer than two (AMD Zen 4, in turns); in huge pages both are as fast.
constexpr hn::CappedTag<float, 8> kTag;
using Numbers = hn::Vec<decltype(kTag)>;
constexpr auto kNumbers = static_cast<int64_t>(hn::MaxLanes(kTag));

HWY_INLINE Numbers all(float value) { return hn::Set(kTag, value); }

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

// `lanes` of them, of which the rest are 0 and not stored.
HWY_INLINE Numbers load(const float* from, int64_t lanes) {
  if (lanes == kNumbers) return hn::LoadU(kTag, from);
  float some[kNumbers] = {};
  std::memcpy(some, from, static_cast<size_t>(lanes) * sizeof(float));
  return hn::LoadU(kTag, some);
}
HWY_INLINE void store(Numbers value, float* to, int64_t lanes) {
  if (lanes == kNumbers) return hn::StoreU(value, kTag, to);
  float some[kNumbers];
  hn::StoreU(value, kTag, some);
  std::memcpy(to, some, static_cast<size_t>(lanes) * sizeof(float));
}

// Calls body(at, lanes).
template <class Body>
HWY_INLINE void for_each(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kNumbers <= count; i += kNumbers) body(i, kNumbers);
  if (i < count) body(i, count - i);
}

void plain(float* weight, const float* gradient, int64_t count, SGDFactors f) {
  for_each(count, [&](int64_t i, int64_t lanes) HWY_ATTR {
    Numbers w = load(weight + i, lanes);
    update(w, load(gradient + i, lanes), f);
    store(w, weight + i, lanes);
  });
}

void with_momentum(float* weight, const float* gradient, float* buffer, int64_t count, SGDFactors f, bool nesterov) {
  for_each(count, [&](int64_t i, int64_t lanes) HWY_ATTR {
    Numbers w = load(weight + i, lanes), b = load(buffer + i, lanes);
    update(w, load(gradient + i, lanes), b, f, nesterov);
    store(w, weight + i, lanes);
    store(b, buffer + i, lanes);
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
