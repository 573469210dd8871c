// Rows of heads on their way out of scratch memory. Included as simd-inl.h is.
#if defined(FSDP_KERNELS_RAW_CAUSAL_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_KERNELS_RAW_CAUSAL_ATTENTION_ROWS_INL_H_
#undef FSDP_KERNELS_RAW_CAUSAL_ATTENTION_ROWS_INL_H_
#else
#define FSDP_KERNELS_RAW_CAUSAL_ATTENTION_ROWS_INL_H_
#endif

#include "kernels/raw/attention/causal_attention_parts.h"
#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::attention::HWY_NAMESPACE {

namespace simd = raw::HWY_NAMESPACE::simd;

// fp32 [P, W] to a head's rows, times `scale`.
template <class T>
HWY_INLINE void unpack_rows(const float* from, int64_t length, int64_t dim, float scale, TokenRows<T> to) {
  const int64_t width = round_up(dim), whole = dim / kGroup * kGroup;
  for (int64_t token = 0; token < length; ++token, from += width) {
    T* row = to.row(token);
    for (int64_t i = 0; i < whole; i += kGroup) simd::store(row + i, simd::load(from + i) * scale);
    if (whole < dim) simd::store_first(row + whole, simd::load(from + whole) * scale, dim - whole);
  }
}

}  // namespace fsdp::kernels::raw::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
