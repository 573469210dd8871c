#include "kernels/raw/flat/sum_squares.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/flat/sum_squares.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

// Short enough that an fp32 sum of squares keeps its digits, long enough that widening costs nothing.
constexpr int64_t kBlock = 1024;

double sum_squares_of(const float* values, int64_t count, double total) {
  int64_t i = 0;
  while (i + kLanes <= count) {
    const int64_t end = std::min(count - count % kLanes, i + kBlock);
    Float sum = simd::zero(), other = simd::zero();
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      const Float a = simd::load(values + i), b = simd::load(values + i + kLanes);
      sum = simd::mul_add(a, a, sum);
      other = simd::mul_add(b, b, other);
    }
    for (; i < end; i += kLanes) sum = simd::mul_add(simd::load(values + i), simd::load(values + i), sum);
    total += simd::sum(sum + other);
  }
  for (; i < count; ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(sum_squares_of);

double sum_squares(const float* values, int64_t count, double before) {
  return HWY_DYNAMIC_DISPATCH(sum_squares_of)(values, count, before);
}

}  // namespace fsdp::kernels::raw
#endif
