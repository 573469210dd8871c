// Passes over a range of any length for optimizers that wait for memory, eight numbers at a time: a range's last ones
// are computed in a padded register, so that an element's bits do not depend on its place. Included as simd-inl.h is.
#if defined(FSDP_KERNELS_RAW_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_KERNELS_RAW_PASSES_INL_H_
#undef FSDP_KERNELS_RAW_PASSES_INL_H_
#else
#define FSDP_KERNELS_RAW_PASSES_INL_H_
#endif

#include <cstring>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE::passes {

namespace hn = hwy::HWY_NAMESPACE;

// 256 bits also where registers have 512: memory is the limit, and where it lies in pages of 4 KiB one access for each
// line of the cache took 10 % longer than two (SGD on AMD Zen 4, in turns); in huge pages both are as fast.
constexpr hn::CappedTag<float, 8> kTag;
using Numbers = hn::Vec<decltype(kTag)>;
constexpr auto kNumbers = static_cast<int64_t>(hn::MaxLanes(kTag));

HWY_INLINE Numbers all(float value) { return hn::Set(kTag, value); }

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

}  // namespace fsdp::kernels::raw::HWY_NAMESPACE::passes
HWY_AFTER_NAMESPACE();

#endif
