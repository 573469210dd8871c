#include "kernels/raw/attention/cached_attention.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/attention/cached_attention.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

// Sums at a time: as many as registers hold beside what is loaded.
constexpr int kRegistersOfSum = static_cast<int>(kLanes) / simd::kNativeLanes;
constexpr int kKeys = kRegistersOfSum == 1 ? 8 : 4;
constexpr int kColumns = kRegistersOfSum == 4 && simd::kRegisters == 16 ? 2 : 4;  // in vectors of 16

// Scores of one query over the keys.
template <class T>
HWY_INLINE void score(const CachedBlock<T>& block, const float* query, float* scores) {
  int64_t key = 0;
  for (; key + kKeys <= block.count; key += kKeys) {
    Float sums[kKeys];
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) sums[j] = simd::zero();
    for (int64_t i = 0; i < block.width; i += kLanes) {
      const Float q = simd::load(query + i);
#pragma GCC unroll 8
      for (int j = 0; j < kKeys; ++j)
        sums[j] = simd::mul_add(q, simd::load(block.k + (key + j) * block.width + i), sums[j]);
    }
    simd::store_sums<kKeys>(sums, scores + key);
  }
  for (; key < block.count; ++key) {
    Float sum = simd::zero();
    for (int64_t i = 0; i < block.width; i += kLanes)
      sum = simd::mul_add(simd::load(query + i), simd::load(block.k + key * block.width + i), sum);
    scores[key] = simd::sum(sum);
  }
}

struct Weighed {
  float top, sum;
};

// In place to e^(score - highest).
HWY_INLINE Weighed exponentiate(float* scores, int64_t count) {
  const int64_t padded = whole_lanes(count);
  std::fill(scores + count, scores + padded, -std::numeric_limits<float>::infinity());
  Float highest = simd::load(scores);
  for (int64_t i = kLanes; i < padded; i += kLanes) highest = simd::max(highest, simd::load(scores + i));
  const float top = simd::max(highest);
  Float total = simd::zero();
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Float p = simd::exp(simd::load(scores + i) - top);
    simd::store(scores + i, p);
    total = total + p;
  }
  return {top, simd::sum(total)};
}

// result[i ..] = sum of weights[key] * v[key][i ..], kCount vectors of it.
template <int kCount, class T>
HWY_INLINE void mix_columns(const CachedBlock<T>& block, const float* weights, int64_t i, float* result) {
  Float sums[kCount];
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) sums[j] = simd::zero();
  for (int64_t key = 0; key < block.count; ++key) {
    const Float weight = simd::broadcast(weights[key]);
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j)
      sums[j] = simd::mul_add(weight, simd::load(block.v + key * block.width + i + j * kLanes), sums[j]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < kCount; ++j) simd::store(result + i + j * kLanes, sums[j]);
}

template <class T>
HWY_INLINE void attend_of(const CachedBlock<T>& block, float* partial) {
  alignas(64) float scores[kCachedBlock + kLanes];
  for (int64_t g = 0; g < block.group; ++g, partial += block.width + kLanes) {
    score(block, block.queries + g * block.width, scores);
    const Weighed weighed = exponentiate(scores, block.count);
    partial[0] = weighed.top;
    partial[1] = weighed.sum;
    int64_t i = 0;
    for (; i + kColumns * kLanes <= block.width; i += kColumns * kLanes)
      mix_columns<kColumns>(block, scores, i, partial + kLanes);
    for (; i < block.width; i += kLanes) mix_columns<1>(block, scores, i, partial + kLanes);
  }
}

void attend_f32(const CachedBlock<float>& block, float* partial) { attend_of(block, partial); }
void attend_bf16(const CachedBlock<Bf16>& block, float* partial) { attend_of(block, partial); }

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(attend_f32);
HWY_EXPORT(attend_bf16);

void attend_block(const CachedBlock<float>& block, float* partial) { HWY_DYNAMIC_DISPATCH(attend_f32)(block, partial); }
void attend_block(const CachedBlock<Bf16>& block, float* partial) { HWY_DYNAMIC_DISPATCH(attend_bf16)(block, partial); }

}  // namespace fsdp::kernels::raw
#endif
