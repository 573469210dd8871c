// The inner loop of fp32 matrix products. Included as simd-inl.h is.
#if defined(FSDP_KERNELS_RAW_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_KERNELS_RAW_GEMM_TILE_INL_H_
#undef FSDP_KERNELS_RAW_GEMM_TILE_INL_H_
#else
#define FSDP_KERNELS_RAW_GEMM_TILE_INL_H_
#endif

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {

using simd::kNativeLanes;
using simd::Native;
using simd::Tag;
namespace hn = hwy::HWY_NAMESPACE;

// A tile's sums, a row of B and an element of A fit the registers: 6 x 4 of 32, 6 x 2 of 16.
constexpr int kTileRows = 6;
constexpr int kTileVectors = simd::kRegisters == 32 ? 4 : 2;
// As __builtin_prefetch() names the cache.
constexpr int kSecondLevel = 2;

struct Block {
  int64_t k;
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  bool add;
  const float* next = nullptr;  // what the processor is to read after this block, from a cache that is far
};

// C [kRows, kVectors of lanes], held in registers over the whole of k. What is there is added in the end: sums over a
// vocabulary, made of many blocks, lose a digit where each number is added to all before it. With kAhead > 0, C
// comes nearer meanwhile, and of `next` that many numbers for every kLanes of k.
template <int kRows, int kVectors, int64_t kAhead>
HWY_INLINE void tile(const Block& x) {
  const Tag tag;
  Native sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[row][v] = hn::Zero(tag);
  const float *column = x.a, *b = x.b;
  if constexpr (kAhead > 0) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) __builtin_prefetch(x.c + row * x.c_stride, 1);
  }
  const float* next = x.next;
  const auto step = [&]() HWY_ATTR {
    Native right[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) right[v] = hn::LoadU(tag, b + v * kNativeLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Native left = hn::Set(tag, column[row * x.a_row]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[row][v] = hn::MulAdd(left, right[v], sums[row][v]);
    }
    b += x.b_stride;
    column += x.a_column;
  };
  int64_t i = 0;
  for (; i + kLanes <= x.k; i += kLanes) {
    // The next tile's rows, which may come from memory, in pieces too short for the processor to foresee.
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) hwy::Prefetch(column + (kRows + row) * x.a_row);
#pragma GCC unroll 8
    for (int64_t line = 0; line < kAhead; line += kLanes) __builtin_prefetch(next + line, 0, kSecondLevel);
    next += kAhead;
#pragma GCC unroll 4
    for (int64_t j = 0; j < kLanes; ++j) step();
  }
  for (; i < x.k; ++i) step();
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* to = x.c + row * x.c_stride + v * kNativeLanes;
      hn::StoreU(x.add ? hn::Add(sums[row][v], hn::LoadU(tag, to)) : sums[row][v], tag, to);
    }
}

// Of the m rows from x on as many as make tiles of kRows.
template <int kRows, int kVectors, int64_t kAhead>
HWY_INLINE void take_tiles(int64_t& m, Block& x) {
  for (; m >= kRows; m -= kRows) {
    tile<kRows, kVectors, kAhead>(x);
    x.a += kRows * x.a_row;
    x.c += kRows * x.c_stride;
    x.next += kAhead * x.k / kLanes;
  }
}

// All rows of `kVectors` of columns.
template <int kVectors, int64_t kAhead = 0>
HWY_INLINE void columns(int64_t m, Block x) {
  take_tiles<kTileRows, kVectors, kAhead>(m, x);
  take_tiles<4, kVectors, kAhead>(m, x);
  take_tiles<2, kVectors, kAhead>(m, x);
  take_tiles<1, kVectors, kAhead>(m, x);
}

}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
