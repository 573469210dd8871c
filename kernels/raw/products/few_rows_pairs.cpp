#include <algorithm>
#include <exception>

#include "kernels/raw/bf16_pairs.h"
#include "kernels/raw/products/few_rows.h"

namespace fsdp::kernels::raw {

#if FSDP_HAS_BF16_PAIRS
namespace {

constexpr int64_t kNumbers = 32;  // of a vector
constexpr __mmask32 kAll = ~__mmask32{0};
// Ahead of the loads, over the ends of pages and rows, which the processor's own prefetcher stops at.
constexpr int64_t kPrefetchBytes = 8192;

// totals += x[row] . weight[output] over the numbers of `mask` among the next 32.
template <int kRows, int kOutputs>
FSDP_BF16_PAIRS_INLINE void add_products(const Bf16* x, const Bf16* weight, int64_t k, __mmask32 mask,
                                         __m512 (&totals)[kRows][kOutputs]) {
  __m512bh right[kOutputs];
#pragma GCC unroll 8
  for (int output = 0; output < kOutputs; ++output) {
    const Bf16* from = weight + output * k;
    __builtin_prefetch(reinterpret_cast<const char*>(from) + kPrefetchBytes);
    right[output] = (__m512bh)_mm512_maskz_loadu_epi16(mask, from);
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    const auto left = (__m512bh)_mm512_maskz_loadu_epi16(mask, x + row * k);
#pragma GCC unroll 8
    for (int output = 0; output < kOutputs; ++output)
      totals[row][output] = _mm512_dpbf16_ps(totals[row][output], left, right[output]);
  }
}

// Halves added until four lanes are left.
FSDP_BF16_PAIRS_INLINE __m128 quad_of(__m512 value) {
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, value);
  return _mm_add_ps(_mm_add_ps(_mm_load_ps(lanes), _mm_load_ps(lanes + 8)),
                    _mm_add_ps(_mm_load_ps(lanes + 4), _mm_load_ps(lanes + 12)));
}

// The sums of the lanes of four vectors, each in the same order.
FSDP_BF16_PAIRS_INLINE __m128 sums_of(__m512 a, __m512 b, __m512 c, __m512 d) {
  __m128 first = quad_of(a), second = quad_of(b), third = quad_of(c), fourth = quad_of(d);
  _MM_TRANSPOSE4_PS(first, second, third, fourth);
  return _mm_add_ps(_mm_add_ps(first, third), _mm_add_ps(second, fourth));
}

// x[row] . weight[output] to y[row * stride + output] for kRows rows and kOutputs outputs. Every product has one sum,
// added to in the order of k, so that its result does not depend on the tile.
template <int kRows, int kOutputs>
FSDP_BF16_PAIRS_INLINE void tile(const Bf16* x, const Bf16* weight, Bf16* y, int64_t k, int64_t stride) {
  __m512 totals[kRows][kOutputs];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int output = 0; output < kOutputs; ++output) totals[row][output] = _mm512_setzero_ps();
  int64_t i = 0;
  for (; i + kNumbers <= k; i += kNumbers) add_products<kRows, kOutputs>(x + i, weight + i, k, kAll, totals);
  if (i < k) add_products<kRows, kOutputs>(x + i, weight + i, k, (__mmask32{1} << (k - i)) - 1, totals);
  for (int row = 0; row < kRows; ++row)
    for (int first = 0; first < kOutputs; first += 4) {
      alignas(16) float results[4];
      __m512 four[4];
      for (int j = 0; j < 4; ++j) four[j] = totals[row][std::min(first + j, kOutputs - 1)];
      _mm_store_ps(results, sums_of(four[0], four[1], four[2], four[3]));
      for (int j = 0; j < std::min(4, kOutputs - first); ++j)
        y[row * stride + first + j] = from_float<Bf16>(results[j]);
    }
}

}  // namespace

FSDP_BF16_PAIRS void few_rows_of_pairs(const Bf16* x, const Bf16* weight, Bf16* y, int64_t rows, int64_t k,
                                       int64_t stride, int64_t outputs) {
  int64_t output = 0;
  for (; output + 8 <= outputs; output += 8, weight += 8 * k, y += 8) {  // stays in the cache for the rows
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4)
      for (int i = 0; i < 8; i += 4) tile<4, 4>(x + row * k, weight + i * k, y + row * stride + i, k, stride);
    for (; row < rows; ++row) tile<1, 8>(x + row * k, weight, y + row * stride, k, stride);
  }
  for (; output < outputs; ++output, weight += k, ++y)
    for (int64_t row = 0; row < rows; ++row) tile<1, 1>(x + row * k, weight, y + row * stride, k, stride);
}
#else
void few_rows_of_pairs(const Bf16*, const Bf16*, Bf16*, int64_t, int64_t, int64_t, int64_t) { std::terminate(); }
#endif

}  // namespace fsdp::kernels::raw
