// Passes over a range of any length, register by register: the last one may be short. For what works on lanes of
// several widths at once, which simd-inl.h's `Float` has no words for. Included as that is.
#if defined(FSDP_KERNELS_RAW_REGISTERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_KERNELS_RAW_REGISTERS_INL_H_
#undef FSDP_KERNELS_RAW_REGISTERS_INL_H_
#else
#define FSDP_KERNELS_RAW_REGISTERS_INL_H_
#endif

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE::registers {

namespace hn = hwy::HWY_NAMESPACE;
using simd::Tag;
using TagBits = simd::TagBits;
using TagInt = simd::TagInt;
template <class T>
using TagOf = hn::Rebind<T, Tag>;  // as many lanes as a register of fp32 has
constexpr size_t kFull = simd::kNativeLanes;

// Calls body(at, lanes).
template <class Body>
HWY_INLINE void for_each(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + static_cast<int64_t>(kFull) <= count; i += static_cast<int64_t>(kFull)) body(i, kFull);
  if (i < count) body(i, static_cast<size_t>(count - i));
}

// Lanes from `lanes` on are 0, and are not stored.
template <class T>
HWY_INLINE hn::Vec<TagOf<T>> load(const T* from, size_t lanes) {
  if (lanes == kFull) return hn::LoadU(TagOf<T>(), from);
  T some[kFull] = {};
  std::memcpy(some, from, lanes * sizeof(T));
  return hn::LoadU(TagOf<T>(), some);
}
template <class T>
HWY_INLINE void store(hn::Vec<TagOf<T>> value, T* to, size_t lanes) {
  if (lanes == kFull) return hn::StoreU(value, TagOf<T>(), to);
  T some[kFull];
  hn::StoreU(value, TagOf<T>(), some);
  std::memcpy(to, some, lanes * sizeof(T));
}

}  // namespace fsdp::kernels::raw::HWY_NAMESPACE::registers
HWY_AFTER_NAMESPACE();

#endif
