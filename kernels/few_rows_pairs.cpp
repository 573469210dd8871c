#include "kernels/few_rows_pairs.h"

#include <algorithm>
#include <exception>

#include "kernels/simd.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define FSDP_HAS_PAIRS 1
#define FSDP_PAIRS inline __attribute__((always_inline, target("avx512f,avx512bw,avx512bf16")))
#endif

namespace fsdp::kernels {

#ifdef FSDP_HAS_PAIRS
namespace {

using c10::BFloat16;
using simd::Float;

constexpr int64_t kNumbers = 32;  // of a vector
constexpr __mmask32 kAll = ~__mmask32{0};
// Ahead of the loads, over the ends of pages and rows, which the processor's own prefetcher stops at.
constexpr int64_t kPrefetchBytes = 8192;

// totals += x[row] . weight[output] over the numbers of `mask` among the next 32.
template <int kRows, int kOutputs>
FSDP_PAIRS void add_products(const BFloat16* x, const BFloat16* weight, int64_t k, __mmask32 mask,
                             __m512 (&totals)[kRows][kOutputs]) {
  __m512bh right[kOutputs];
#pragma GCC unroll 8
  for (int output = 0; output < kOutputs; ++output) {
    const BFloat16* from = weight + output * k;
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

// x[row] . weight[output] to y[row * stride + output] for kRows rows and kOutputs outputs. Every product has one sum,
// added to in the order of k, so that its result does not depend on the tile.
template <int kRows, int kOutputs>
FSDP_PAIRS void tile(const BFloat16* x, const BFloat16* weight, BFloat16* y, int64_t k, int64_t stride) {
  __m512 totals[kRows][kOutputs];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int output = 0; output < kOutputs; ++output) totals[row][output] = _mm512_setzero_ps();
  int64_t i = 0;
  for (; i + kNumbers <= k; i += kNumbers) add_products<kRows, kOutputs>(x + i, weight + i, k, kAll, totals);
  if (i < k) add_products<kRows, kOutputs>(x + i, weight + i, k, (__mmask32{1} << (k - i)) - 1, totals);
  alignas(64) BFloat16 results[kRows * kOutputs + simd::kLanes];  // eight at a time, and what follows them
  const auto* sums = reinterpret_cast<const Float*>(totals);
  for (int first = 0; first < kRows * kOutputs; first += 8) {
    Float eight[8] = {};
    for (int i = 0; i < std::min(8, kRows * kOutputs - first); ++i) eight[i] = sums[first + i];
    simd::store(results + first, simd::sums(eight));
  }
  for (int row = 0; row < kRows; ++row)
    for (int output = 0; output < kOutputs; ++output) y[row * stride + output] = results[row * kOutputs + output];
}

}  // namespace

__attribute__((target("avx512f,avx512bw,avx512bf16"))) void few_rows_of_pairs(const BFloat16* x, const BFloat16* weight,
                                                                              BFloat16* y, int64_t rows, int64_t k,
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
void few_rows_of_pairs(const c10::BFloat16*, const c10::BFloat16*, c10::BFloat16*, int64_t, int64_t, int64_t, int64_t) {
  std::terminate();
}
#endif

}  // namespace fsdp::kernels
