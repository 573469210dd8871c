// Squares of fp32 in registers, for the kernels of this folder: transposed, and summed along their rows. Included as
// simd-inl.h is.
#if defined(FSDP_KERNELS_RAW_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSDP_KERNELS_RAW_TRANSPOSE_INL_H_
#undef FSDP_KERNELS_RAW_TRANSPOSE_INL_H_
#else
#define FSDP_KERNELS_RAW_TRANSPOSE_INL_H_
#endif

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE::simd {

#if HWY_TARGET != HWY_SCALAR
// Within blocks of four lanes: column i of the blocks of four vectors becomes vector i.
template <class Vector, class VectorTag>
HWY_INLINE void transpose_blocks(VectorTag tag, Vector (&rows)[4]) {
  const hn::RepartitionToWide<VectorTag> wide;
  const auto low = hn::BitCast(wide, hn::InterleaveLower(tag, rows[0], rows[1])),
             low_next = hn::BitCast(wide, hn::InterleaveLower(tag, rows[2], rows[3])),
             high = hn::BitCast(wide, hn::InterleaveUpper(tag, rows[0], rows[1])),
             high_next = hn::BitCast(wide, hn::InterleaveUpper(tag, rows[2], rows[3]));
  rows[0] = hn::BitCast(tag, hn::InterleaveLower(wide, low, low_next));
  rows[1] = hn::BitCast(tag, hn::InterleaveUpper(wide, low, low_next));
  rows[2] = hn::BitCast(tag, hn::InterleaveLower(wide, high, high_next));
  rows[3] = hn::BitCast(tag, hn::InterleaveUpper(wide, high, high_next));
}
#endif

// kNativeLanes rows become as many columns; rows and columns lie `stride` apart.
HWY_INLINE void transpose_native(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  constexpr int64_t kN = kNativeLanes;
#if HWY_TARGET == HWY_SCALAR
  static_assert(kN == 1);
  *to = *from;
  (void)from_stride;
  (void)to_stride;
#else
  const Tag tag;
  Native groups[kN / 4][4];
#pragma GCC unroll 4
  for (int group = 0; group < kN / 4; ++group) {
#pragma GCC unroll 4
    for (int row = 0; row < 4; ++row) groups[group][row] = hn::LoadU(tag, from + (4 * group + row) * from_stride);
    transpose_blocks(tag, groups[group]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if constexpr (kN == 4) {
      hn::StoreU(groups[0][i], tag, to + i * to_stride);
    } else if constexpr (kN == 8) {
      hn::StoreU(hn::ConcatLowerLower(tag, groups[1][i], groups[0][i]), tag, to + i * to_stride);
      hn::StoreU(hn::ConcatUpperUpper(tag, groups[1][i], groups[0][i]), tag, to + (4 + i) * to_stride);
    } else {
      const auto a = groups[0][i], b = groups[1][i], c = groups[2][i], d = groups[3][i];
      // Blocks 0 and 2, then 1 and 3, of two groups each.
      const auto even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b), a),
                 odd = hn::OddEvenBlocks(b, hn::SwapAdjacentBlocks(a)),
                 next_even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(d), c),
                 next_odd = hn::OddEvenBlocks(d, hn::SwapAdjacentBlocks(c));
      hn::StoreU(hn::ConcatLowerLower(tag, next_even, even), tag, to + i * to_stride);
      hn::StoreU(hn::ConcatLowerLower(tag, next_odd, odd), tag, to + (4 + i) * to_stride);
      hn::StoreU(hn::ConcatUpperUpper(tag, next_even, even), tag, to + (8 + i) * to_stride);
      hn::StoreU(hn::ConcatUpperUpper(tag, next_odd, odd), tag, to + (12 + i) * to_stride);
    }
  }
#endif
}

// Sixteen rows become sixteen columns; rows and columns lie `stride` apart.
HWY_INLINE void transpose(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  for (int64_t row = 0; row < kLanes; row += kNativeLanes)
    for (int64_t column = 0; column < kLanes; column += kNativeLanes)
      transpose_native(from + row * from_stride + column, from_stride, to + column * to_stride + row, to_stride);
}

#if HWY_TARGET != HWY_SCALAR
using Quad = hn::CappedTag<float, 4>;

// Halves added until four lanes are left.
template <class VectorTag>
HWY_INLINE hn::Vec<Quad> to_quad([[maybe_unused]] VectorTag tag, hn::Vec<VectorTag> value) {
  if constexpr (hn::MaxLanes(VectorTag()) == 4) {
    return value;
  } else {
    const hn::Half<VectorTag> half;
    return to_quad(half, hn::Add(hn::LowerHalf(half, value), hn::UpperHalf(half, value)));
  }
}

HWY_INLINE hn::Vec<Quad> quad_of(One value) { return to_quad(Tag(), value.v); }
template <class Half>
HWY_INLINE hn::Vec<Quad> quad_of(const Two<Half>& value) {
  return quad_of(value.low + value.high);
}
#endif

// to[i] = sum(values[i]) for kCount of them, with the same bits.
template <int kCount>
HWY_INLINE void store_sums(const Float* values, float* to) {
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Quad tag;
#pragma GCC unroll 8
  for (; i + 4 <= kCount; i += 4) {
    hn::Vec<Quad> quads[4] = {quad_of(values[i]), quad_of(values[i + 1]), quad_of(values[i + 2]),
                              quad_of(values[i + 3])};
    transpose_blocks(tag, quads);
    hn::StoreU(hn::Add(hn::Add(quads[0], quads[2]), hn::Add(quads[1], quads[3])), tag, to + i);
  }
#endif
#pragma GCC unroll 4
  for (; i < kCount; ++i) to[i] = sum(values[i]);
}

}  // namespace fsdp::kernels::raw::HWY_NAMESPACE::simd
HWY_AFTER_NAMESPACE();

#endif
