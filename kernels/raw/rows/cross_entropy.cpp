#include "kernels/raw/rows/cross_entropy.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/rows/cross_entropy.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The others are zero: exp() saturates at 1e-38, so what fills a vector up is left out by its place, not added as such.
HWY_INLINE Float first_lanes(const Float& value, int64_t count) {
  alignas(64) float lanes[kLanes];
  simd::store(lanes, value);
  return simd::load_first(lanes, count);
}

template <class T>
HWY_INLINE float log_sum_exp_of(const T* logits, int64_t vocab) {
  const int64_t whole = vocab - vocab % kLanes, rest = vocab - whole;
  const Float tail = simd::load_first(logits + whole, rest, kLowest);
  Float highest = tail;
  for (int64_t i = 0; i < whole; i += kLanes) highest = simd::max(highest, simd::load(logits + i));
  const float top = simd::max(highest);
  Float total = simd::zero();
  if (rest) total = first_lanes(simd::exp(tail - top), rest);
  for (int64_t i = 0; i < whole; i += kLanes) total = total + simd::exp(simd::load(logits + i) - top);
  return top + std::log(simd::sum(total));
}

template <class T>
HWY_INLINE float mean_of(const T* logits, int64_t vocab) {
  const int64_t whole = vocab - vocab % kLanes, rest = vocab - whole;
  Float total = simd::load_first(logits + whole, rest);
  for (int64_t i = 0; i < whole; i += kLanes) total = total + simd::load(logits + i);
  return simd::sum(total) / static_cast<float>(vocab);
}

template <class T>
HWY_INLINE void loss_gradient_of(const T* logits, const LossGradient& row, int64_t target, T* grad, int64_t vocab) {
  const Float slope = simd::broadcast(row.slope * row.scale), spread = simd::broadcast(row.spread * row.scale);
  int64_t i = 0;
  for (; i + kLanes <= vocab; i += kLanes)
    simd::store(grad + i, simd::exp(simd::load(logits + i) - row.log_sum_exp) * slope - spread);
  if (i < vocab) {
    const Float tail = simd::load_first(logits + i, vocab - i);
    simd::store_first(grad + i, simd::exp(tail - row.log_sum_exp) * slope - spread, vocab - i);
  }
  const float p = std::exp(to_float(logits[target]) - row.log_sum_exp);
  grad[target] = from_float<T>((p * row.slope - row.peak - row.spread) * row.scale);
}

float log_sum_exp_f32(const float* logits, int64_t vocab) { return log_sum_exp_of(logits, vocab); }
float log_sum_exp_bf16(const Bf16* logits, int64_t vocab) { return log_sum_exp_of(logits, vocab); }
float mean_f32(const float* logits, int64_t vocab) { return mean_of(logits, vocab); }
float mean_bf16(const Bf16* logits, int64_t vocab) { return mean_of(logits, vocab); }
void gradient_f32(const float* logits, const LossGradient& row, int64_t target, float* grad, int64_t vocab) {
  loss_gradient_of(logits, row, target, grad, vocab);
}
void gradient_bf16(const Bf16* logits, const LossGradient& row, int64_t target, Bf16* grad, int64_t vocab) {
  loss_gradient_of(logits, row, target, grad, vocab);
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(log_sum_exp_f32);
HWY_EXPORT(log_sum_exp_bf16);
HWY_EXPORT(mean_f32);
HWY_EXPORT(mean_bf16);
HWY_EXPORT(gradient_f32);
HWY_EXPORT(gradient_bf16);

float log_sum_exp(const float* logits, int64_t vocab) { return HWY_DYNAMIC_DISPATCH(log_sum_exp_f32)(logits, vocab); }
float log_sum_exp(const Bf16* logits, int64_t vocab) { return HWY_DYNAMIC_DISPATCH(log_sum_exp_bf16)(logits, vocab); }
float mean(const float* logits, int64_t vocab) { return HWY_DYNAMIC_DISPATCH(mean_f32)(logits, vocab); }
float mean(const Bf16* logits, int64_t vocab) { return HWY_DYNAMIC_DISPATCH(mean_bf16)(logits, vocab); }
void loss_gradient(const float* logits, const LossGradient& row, int64_t target, float* grad, int64_t vocab) {
  HWY_DYNAMIC_DISPATCH(gradient_f32)(logits, row, target, grad, vocab);
}
void loss_gradient(const Bf16* logits, const LossGradient& row, int64_t target, Bf16* grad, int64_t vocab) {
  HWY_DYNAMIC_DISPATCH(gradient_bf16)(logits, row, target, grad, vocab);
}

}  // namespace fsdp::kernels::raw
#endif
