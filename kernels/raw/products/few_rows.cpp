#include "kernels/raw/products/few_rows.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/products/few_rows.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;
using simd::kNativeLanes;
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kPairLanes = 2 * kLanes;
// Ahead of the loads, over the ends of pages and rows, which the processor's own prefetcher stops at.
constexpr int64_t kPrefetchBytes = 8192;

struct Tile {
  int rows, outputs;
};
// Every product has one sum of 16 lanes, in 1 to 4 registers. Sums, and what is loaded beside them, fit the registers.
constexpr int kRegistersOfSum = static_cast<int>(kLanes) / kNativeLanes;
constexpr Tile tile_of_rows() {
  if (kRegistersOfSum == 1) return {4, 4};
  if (kRegistersOfSum == 2) return {3, 2};
  return simd::kRegisters == 32 ? Tile{3, 2} : Tile{2, 1};
}
constexpr Tile tile_of_one_row() {
  if (kRegistersOfSum == 1) return {1, 8};
  return kRegistersOfSum == 2 || simd::kRegisters == 32 ? Tile{1, 4} : Tile{1, 2};
}

// 32 neighbours of a weight row as two vectors: halves for fp32; for bf16, which needs no more than a shift and a mask
// then, even and odd places.
HWY_INLINE void load_pair(const float* from, Float& first, Float& second) {
  first = simd::load(from);
  second = simd::load(from + kLanes);
}

HWY_INLINE void split_pairs(const Bf16* from, simd::One& even, simd::One& odd) {
  const simd::TagBits bits_tag;
  const auto bits = hn::LoadU(bits_tag, reinterpret_cast<const uint32_t*>(from));
  even.v = hn::BitCast(simd::Tag(), hn::ShiftLeft<16>(bits));
  odd.v = hn::BitCast(simd::Tag(), hn::And(bits, hn::Set(bits_tag, 0xFFFF0000u)));
}

template <class Half>
HWY_INLINE void split_pairs(const Bf16* from, simd::Two<Half>& even, simd::Two<Half>& odd) {
  split_pairs(from, even.low, odd.low);
  split_pairs(from + 2 * simd::Width<Half>::kCount, even.high, odd.high);
}

HWY_INLINE void load_pair(const Bf16* from, Float& first, Float& second) { split_pairs(from, first, second); }

// What is left of a sum over k after `i`: a whole vector, a part of one, or both.
template <class W>
HWY_INLINE Float rest_of_sum(const float* x, const W* weight, int64_t i, int64_t k, Float total) {
  for (; i < k; i += kLanes) {
    const int64_t count = std::min(kLanes, k - i);
    total = simd::mul_add(simd::load_first(weight + i, count), simd::load_first(x + i, count), total);
  }
  return total;
}

// x[row] . weight[output] for kRows rows and kOutputs outputs to y[row * stride + output]. A sum is added to in the
// order of k, so that its result does not depend on the tile.
template <int kRows, int kOutputs, class W, class Y>
HWY_INLINE void tile(const float* x, const W* weight, Y* y, int64_t k, int64_t stride) {
  Float total[kRows * kOutputs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kOutputs; ++i) total[i] = simd::zero();
  int64_t i = 0;
  for (; i + kPairLanes <= k; i += kPairLanes) {
    Float first[kOutputs], second[kOutputs];
#pragma GCC unroll 8
    for (int output = 0; output < kOutputs; ++output) {
      const W* from = weight + output * k + i;
      hwy::Prefetch(reinterpret_cast<const char*>(from) + kPrefetchBytes);
      load_pair(from, first[output], second[output]);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Float x_first = simd::load(x + row * k + i), x_second = simd::load(x + row * k + i + kLanes);
#pragma GCC unroll 8
      for (int output = 0; output < kOutputs; ++output) {
        Float& sum = total[row * kOutputs + output];
        sum = simd::mul_add(first[output], x_first, sum);
        sum = simd::mul_add(second[output], x_second, sum);
      }
    }
  }
  Float whole[kRows * kOutputs];  // in memory: `total` lives in registers
  for (int j = 0; j < kRows * kOutputs; ++j) whole[j] = total[j];
  if (i < k)
    for (int j = 0; j < kRows * kOutputs; ++j)
      whole[j] = rest_of_sum(x + j / kOutputs * k, weight + j % kOutputs * k, i, k, whole[j]);
  alignas(64) float results[kRows * kOutputs];
  simd::store_sums<kRows * kOutputs>(whole, results);
  for (int row = 0; row < kRows; ++row)
    for (int output = 0; output < kOutputs; ++output)
      y[row * stride + output] = from_float<Y>(results[row * kOutputs + output]);
}

template <class W, class Y>
HWY_INLINE void few_rows_of(const float* x, const W* weight, Y* y, int64_t rows, int64_t k, int64_t stride,
                            int64_t outputs) {
  constexpr Tile kMany = tile_of_rows(), kOne = tile_of_one_row();
  constexpr int kGroup = 8;  // outputs whose weights stay in the cache for the rows
  int64_t output = 0;
  for (; output + kGroup <= outputs; output += kGroup, weight += kGroup * k, y += kGroup) {
    int64_t row = 0;
    for (; row + kMany.rows <= rows; row += kMany.rows)
      for (int i = 0; i < kGroup; i += kMany.outputs)
        tile<kMany.rows, kMany.outputs>(x + row * k, weight + i * k, y + row * stride + i, k, stride);
    for (; row < rows; ++row)
      for (int i = 0; i < kGroup; i += kOne.outputs)
        tile<1, kOne.outputs>(x + row * k, weight + i * k, y + row * stride + i, k, stride);
  }
  for (; output < outputs; ++output, weight += k, ++y)
    for (int64_t row = 0; row < rows; ++row) tile<1, 1>(x + row * k, weight, y + row * stride, k, stride);
}

void few_rows_f32(const float* x, const float* weight, float* y, int64_t rows, int64_t k, int64_t stride,
                  int64_t outputs) {
  few_rows_of(x, weight, y, rows, k, stride, outputs);
}

void few_rows_mixed(const float* x, const Bf16* weight, float* y, int64_t rows, int64_t k, int64_t stride,
                    int64_t outputs) {
  few_rows_of(x, weight, y, rows, k, stride, outputs);
}

void few_rows_bf16(const float* x, const Bf16* weight, Bf16* y, int64_t rows, int64_t k, int64_t stride,
                   int64_t outputs) {
  few_rows_of(x, weight, y, rows, k, stride, outputs);
}

template <class T>
HWY_INLINE void spread_rows_of(const T* from, float* to, int64_t rows, int64_t k) {
  for (int64_t row = 0; row < rows; ++row, from += k, to += k) {
    int64_t i = 0;
    for (; i + kPairLanes <= k; i += kPairLanes)
      for (int64_t j = 0; j < kLanes; ++j) {
        to[i + j] = to_float(from[i + 2 * j]);
        to[i + kLanes + j] = to_float(from[i + 2 * j + 1]);
      }
    for (; i < k; ++i) to[i] = to_float(from[i]);
  }
}

void spread_rows_f32(const float* x, float* to, int64_t rows, int64_t k) { spread_rows_of(x, to, rows, k); }
void spread_rows_bf16(const Bf16* x, float* to, int64_t rows, int64_t k) { spread_rows_of(x, to, rows, k); }

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(few_rows_f32);
HWY_EXPORT(few_rows_mixed);
HWY_EXPORT(few_rows_bf16);
HWY_EXPORT(spread_rows_f32);
HWY_EXPORT(spread_rows_bf16);

void few_rows(const float* x, const float* weight, float* y, int64_t rows, int64_t k, int64_t stride, int64_t outputs) {
  HWY_DYNAMIC_DISPATCH(few_rows_f32)(x, weight, y, rows, k, stride, outputs);
}
void few_rows(const float* x, const Bf16* weight, float* y, int64_t rows, int64_t k, int64_t stride, int64_t outputs) {
  HWY_DYNAMIC_DISPATCH(few_rows_mixed)(x, weight, y, rows, k, stride, outputs);
}
void few_rows(const float* x, const Bf16* weight, Bf16* y, int64_t rows, int64_t k, int64_t stride, int64_t outputs) {
  HWY_DYNAMIC_DISPATCH(few_rows_bf16)(x, weight, y, rows, k, stride, outputs);
}

void spread_rows(const float* x, float* to, int64_t rows, int64_t k) {
  HWY_DYNAMIC_DISPATCH(spread_rows_f32)(x, to, rows, k);
}
void spread_rows(const Bf16* x, float* to, int64_t rows, int64_t k) {
  HWY_DYNAMIC_DISPATCH(spread_rows_bf16)(x, to, rows, k);
}

}  // namespace fsdp::kernels::raw
#endif
