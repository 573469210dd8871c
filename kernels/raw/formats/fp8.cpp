#include "kernels/raw/formats/fp8.h"

#include <algorithm>
#include <bit>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/formats/fp8.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

#ifndef FSDP_KERNELS_RAW_FORMATS_FP8_LAYOUT
#define FSDP_KERNELS_RAW_FORMATS_FP8_LAYOUT
namespace fsdp::kernels::raw {
namespace {

struct Fp8Layout {
  int mantissa_bits;
  int highest;          // exponent of the largest number, which is 1.75 * 2^highest in both formats
  int lowest;           // exponent of the smallest normal number
  int lowest_exponent;  // of a block
  bool has_infinity;
};

constexpr Fp8Layout layout_of(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? Fp8Layout{3, 8, -6, -124, false} : Fp8Layout{2, 15, -14, -117, true};
}

constexpr float power_of_two(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }

int exponent_of_block(float largest, const Fp8Layout& layout) {
  if (!(largest > 0)) return 0;
  const auto bits = std::bit_cast<uint32_t>(largest);
  const int exponent = static_cast<int>(bits >> 23) - 127 + ((bits & 0x7FFFFFu) > 0x600000u ? 1 : 0);
  return std::max(exponent - layout.highest, layout.lowest_exponent);
}

}  // namespace
}  // namespace fsdp::kernels::raw
#endif

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::Native;
using simd::Tag;
using simd::TagBits;

constexpr int64_t kWidth = simd::kNativeLanes;

// The first `count` lanes, which may be more than a register has.
template <class T>
HWY_INLINE Native load_up_to(const T* from, int64_t count) {
  alignas(64) float lanes[kWidth] = {};
  if (count < kWidth) {
    for (int64_t i = 0; i < count; ++i) lanes[i] = to_float(from[i]);
    return hn::Load(Tag(), lanes);
  }
  simd::One value;
  simd::load_to(value, from);
  return value.v;
}

template <class T>
HWY_INLINE void store_up_to(T* to, Native value, int64_t count) {
  if (count >= kWidth) return simd::store(to, simd::One(value));
  alignas(64) T lanes[kWidth];
  simd::store(lanes, simd::One(value));
  for (int64_t i = 0; i < count; ++i) to[i] = lanes[i];
}

HWY_INLINE Native infinity() { return hn::BitCast(Tag(), hn::Set(TagBits(), 0x7F800000u)); }

// The largest finite number of each column.
template <class T>
HWY_INLINE void largest_of_columns(const T* x, int64_t rows, int64_t columns, float* largest) {
  for (int64_t column = 0; column < columns; column += kWidth) {
    const int64_t count = std::min<int64_t>(kWidth, columns - column);
    Native best = hn::Zero(Tag());
    for (int64_t row = 0; row < rows; ++row) {
      const Native size = hn::Abs(load_up_to(x + row * columns + column, count));
      best = hn::Max(best, hn::IfThenElseZero(hn::Lt(size, infinity()), size));
    }
    store_up_to(largest + column, best, count);
  }
}

// A number, cut to the format's range.
HWY_INLINE Native round_native_to_fp8(Native x, const Fp8Layout& layout) {
  const Tag tag;
  const TagBits bits_tag;
  const int dropped = 23 - layout.mantissa_bits;
  const Native size = hn::Min(hn::Abs(x), hn::Set(tag, 1.75F * power_of_two(layout.highest)));
  const auto bits = hn::BitCast(bits_tag, size);
  const auto odd = hn::And(hn::ShiftRightSame(bits, dropped), hn::Set(bits_tag, 1));
  const auto half = hn::Set(bits_tag, (1u << (dropped - 1)) - 1);
  const auto kept = hn::And(hn::Add(bits, hn::Add(odd, half)), hn::Set(bits_tag, ~((1u << dropped) - 1)));
  // Adding it leaves multiples of the smallest number.
  const Native magic = hn::Set(tag, power_of_two(layout.lowest - layout.mantissa_bits + 23));
  const Native small = hn::Sub(hn::Add(size, magic), magic);
  const auto is_small = hn::Lt(size, hn::Set(tag, power_of_two(layout.lowest)));
  return hn::CopySign(hn::IfThenElse(is_small, small, hn::BitCast(tag, kept)), x);
}

template <class T>
HWY_INLINE void round_columns(const T* x, int64_t rows, int64_t columns, const float* down, const float* up,
                              const Fp8Layout& layout, T* out) {
  const Native nan = hn::BitCast(Tag(), hn::Set(TagBits(), 0x7FC00000u));
  for (int64_t column = 0; column < columns; column += kWidth) {
    const int64_t count = std::min<int64_t>(kWidth, columns - column);
    const Native shrink = load_up_to(down + column, count), grow = load_up_to(up + column, count);
    for (int64_t row = 0; row < rows; ++row) {
      const Native value = load_up_to(x + row * columns + column, count);
      const Native rounded = hn::Mul(round_native_to_fp8(hn::Mul(value, shrink), layout), grow);
      const Native size = hn::Abs(value);
      const Native other = layout.has_infinity ? hn::IfThenElse(hn::Eq(size, infinity()), value, nan) : nan;
      store_up_to(out + row * columns + column, hn::IfThenElse(hn::Lt(size, infinity()), rounded, other), count);
    }
  }
}

void largest_f32(const float* x, int64_t rows, int64_t columns, float* largest) {
  largest_of_columns(x, rows, columns, largest);
}
void largest_bf16(const Bf16* x, int64_t rows, int64_t columns, float* largest) {
  largest_of_columns(x, rows, columns, largest);
}
void round_f32(const float* x, int64_t rows, int64_t columns, const float* down, const float* up,
               const Fp8Layout& layout, float* out) {
  round_columns(x, rows, columns, down, up, layout, out);
}
void round_bf16(const Bf16* x, int64_t rows, int64_t columns, const float* down, const float* up,
                const Fp8Layout& layout, Bf16* out) {
  round_columns(x, rows, columns, down, up, layout, out);
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(largest_f32);
HWY_EXPORT(largest_bf16);
HWY_EXPORT(round_f32);
HWY_EXPORT(round_bf16);

namespace {

void find_largest(const float* x, int64_t rows, int64_t columns, float* largest) {
  HWY_DYNAMIC_DISPATCH(largest_f32)(x, rows, columns, largest);
}
void find_largest(const Bf16* x, int64_t rows, int64_t columns, float* largest) {
  HWY_DYNAMIC_DISPATCH(largest_bf16)(x, rows, columns, largest);
}
void round_scaled(const float* x, int64_t rows, int64_t columns, const float* down, const float* up,
                  const Fp8Layout& layout, float* out) {
  HWY_DYNAMIC_DISPATCH(round_f32)(x, rows, columns, down, up, layout, out);
}
void round_scaled(const Bf16* x, int64_t rows, int64_t columns, const float* down, const float* up,
                  const Fp8Layout& layout, Bf16* out) {
  HWY_DYNAMIC_DISPATCH(round_bf16)(x, rows, columns, down, up, layout, out);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Numbers by column for one row of blocks, so that blocks of all shapes are rounded by the same loops.
template <class T>
void round_matrix(const T* x, int64_t rows, int64_t columns, const Fp8Block& block, Fp8Format format, T* out,
                  int8_t* exponents, int shift) {
  const Fp8Layout layout = layout_of(format);
  const auto width = static_cast<size_t>(columns);
  std::vector<float> largest(width), down(width), up(width);
  for (int64_t row = 0; row < rows; row += block.rows) {
    const int64_t height = std::min(block.rows, rows - row);
    find_largest(x + row * columns, height, columns, largest.data());
    for (int64_t column = 0; column < columns; column += block.columns) {
      const int64_t end = std::min(columns, column + block.columns);
      const float most = *std::max_element(largest.begin() + column, largest.begin() + end);
      const int exponent = std::clamp(exponent_of_block(most, layout) + shift, layout.lowest_exponent, 120);
      std::fill(down.begin() + column, down.begin() + end, power_of_two(-exponent));
      std::fill(up.begin() + column, up.begin() + end, power_of_two(exponent));
      if (exponents != nullptr) *exponents++ = static_cast<int8_t>(exponent);
    }
    round_scaled(x + row * columns, height, columns, down.data(), up.data(), layout, out + row * columns);
  }
}

}  // namespace

int fp8_exponent(float largest, Fp8Format format) { return exponent_of_block(largest, layout_of(format)); }

namespace {

template <class T>
int exponent_of_all(const T* x, int64_t n, Fp8Format format) {
  constexpr int64_t kPiece = 1024;
  std::vector<float> largest(kPiece);
  float most = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = std::min(kPiece, n - i);
    find_largest(x + i, 1, count, largest.data());
    most = std::max(most, *std::max_element(largest.begin(), largest.begin() + count));
  }
  return most > 0 ? fp8_exponent(most, format) : -128;
}

}  // namespace

int fp8_exponent_of(const float* x, int64_t n, Fp8Format format) { return exponent_of_all(x, n, format); }
int fp8_exponent_of(const Bf16* x, int64_t n, Fp8Format format) { return exponent_of_all(x, n, format); }

int64_t num_fp8_blocks(int64_t rows, int64_t columns, const Fp8Block& block) {
  return ceil_div(rows, block.rows) * ceil_div(columns, block.columns);
}

void round_to_fp8(const float* x, int64_t rows, int64_t columns, const Fp8Block& block, Fp8Format format, float* out,
                  int8_t* exponents, int shift) {
  round_matrix(x, rows, columns, block, format, out, exponents, shift);
}
void round_to_fp8(const Bf16* x, int64_t rows, int64_t columns, const Fp8Block& block, Fp8Format format, Bf16* out,
                  int8_t* exponents, int shift) {
  round_matrix(x, rows, columns, block, format, out, exponents, shift);
}

}  // namespace fsdp::kernels::raw
#endif
