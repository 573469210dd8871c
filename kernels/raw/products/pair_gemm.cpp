#include "kernels/raw/products/pair_gemm.h"

#include <algorithm>
#include <exception>

#include "kernels/raw/bf16_pairs.h"
#include "kernels/raw/cpu_isa.h"
#include "kernels/raw/products/amx.h"

namespace fsdp::kernels::raw {

bool has_pair_gemm() { return has_bf16_pairs(); }

#if FSDP_HAS_BF16_PAIRS
namespace {

FSDP_BF16_PAIRS_INLINE __m512bh in_all_lanes(Bf16Pair pair) {
  __m512i words = _mm512_set1_epi32(static_cast<int>(pair));
#if defined(__clang__) && __clang_major__ < 19
  asm("" : "+v"(words));  // clang 16 dies of what it makes of this and the product
#endif
  return (__m512bh)words;
}

// C [kRows, 16 * kVectors], held in registers over the whole sum.
template <int kRows, int kVectors>
FSDP_BF16_PAIRS_INLINE void tile(int64_t pairs, const PairedOperand& a, const Bf16Pair* b, int64_t b_stride, float* c,
                                 int64_t c_stride, bool add) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      sums[row][v] = add ? _mm512_loadu_ps(c + row * c_stride + v * kLanes) : _mm512_setzero_ps();
  const Bf16Pair* column = a.data;
  for (int64_t i = 0; i < pairs;) {
    // The next tile's rows, which may come from memory, in pieces too short for the processor to foresee.
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) __builtin_prefetch(column + (kRows + row) * a.row_stride);
    for (const int64_t stop = std::min(i + kLanes, pairs); i < stop; ++i, b += b_stride, column += a.pair_stride) {
      __m512bh right[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) right[v] = (__m512bh)_mm512_loadu_si512(b + v * kLanes);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const __m512bh left = in_all_lanes(column[row * a.row_stride]);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sums[row][v] = _mm512_dpbf16_ps(sums[row][v], left, right[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + row * c_stride + v * kLanes, sums[row][v]);
}

template <int kVectors>
FSDP_BF16_PAIRS_INLINE void columns(int64_t m, int64_t pairs, PairedOperand a, const Bf16Pair* b, int64_t b_stride,
                                    float* c, int64_t c_stride, bool add) {
  int64_t row = 0;
  for (; row + 6 <= m; row += 6, a.data += 6 * a.row_stride, c += 6 * c_stride)
    tile<6, kVectors>(pairs, a, b, b_stride, c, c_stride, add);
  for (; row + 2 <= m; row += 2, a.data += 2 * a.row_stride, c += 2 * c_stride)
    tile<2, kVectors>(pairs, a, b, b_stride, c, c_stride, add);
  if (row < m) tile<1, kVectors>(pairs, a, b, b_stride, c, c_stride, add);
}

}  // namespace

FSDP_BF16_PAIRS void pair_gemm_in_vectors(int64_t m, int64_t n, int64_t pairs, PairedOperand a, const Bf16Pair* b,
                                          int64_t b_stride, float* c, int64_t c_stride, bool add) {
  int64_t column = 0;
  for (; column + 4 * kLanes <= n; column += 4 * kLanes)
    columns<4>(m, pairs, a, b + column, b_stride, c + column, c_stride, add);
  for (; column + 2 * kLanes <= n; column += 2 * kLanes)
    columns<2>(m, pairs, a, b + column, b_stride, c + column, c_stride, add);
  for (; column < n; column += kLanes) columns<1>(m, pairs, a, b + column, b_stride, c + column, c_stride, add);
}
#else
void pair_gemm_in_vectors(int64_t, int64_t, int64_t, PairedOperand, const Bf16Pair*, int64_t, float*, int64_t, bool) {
  std::terminate();
}
#endif

void pair_gemm(int64_t m, int64_t n, int64_t pairs, PairedOperand a, const Bf16Pair* b, int64_t b_stride, float* c,
               int64_t c_stride, bool add) {
  const bool in_tiles = pairs > 0 && a.pair_stride == 1 && amx::is_available();
  (in_tiles ? amx::pair_gemm : pair_gemm_in_vectors)(m, n, pairs, a, b, b_stride, c, c_stride, add);
}

}  // namespace fsdp::kernels::raw
