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
using simd::Native;
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
  return kRegistersOfSum == 2 || simd::kRegisters == 32 ? Tile{3, 2} : Tile{3, 1};
}
constexpr int kOutputsOfOneRow = kRegistersOfSum == 1 ? 8 : 4;  // streams of weights that are read at once
constexpr int kGroup = 8;                                       // outputs whose weights stay in the cache for the rows

// Of 32 neighbours of a weight row the part of a register that belongs to its place in a sum: of the first or second
// 16; of bf16, which needs no more than a shift or a mask then, of the even or odd places.
enum class Half { kFirst, kSecond };

template <Half kHalf>
HWY_INLINE Native load_part(const float* from, int part) {
  return hn::LoadU(simd::Tag(), from + part * kNativeLanes + (kHalf == Half::kFirst ? 0 : kLanes));
}

template <Half kHalf>
HWY_INLINE Native load_part(const Bf16* from, int part) {
  const simd::TagBits tag;
  const auto bits = hn::LoadU(tag, reinterpret_cast<const uint32_t*>(from + 2 * kNativeLanes * part));
  return hn::BitCast(simd::Tag(),
                     kHalf == Half::kFirst ? hn::ShiftLeft<16>(bits) : hn::And(bits, hn::Set(tag, 0xFFFF0000u)));
}

// Adds what is left of a sum over k after `i`: a whole vector, a part of one, or both.
template <class W>
HWY_NOINLINE void add_rest(const float* x, const W* weight, int64_t i, int64_t k, float* sum) {
  Float total = simd::load(sum);
  for (; i < k; i += kLanes) {
    const int64_t count = std::min(kLanes, k - i);
    total = simd::mul_add(simd::load_first(weight + i, count), simd::load_first(x + i, count), total);
  }
  simd::store(sum, total);
}

// Adds a part of every product to its sum.
template <Half kHalf, int kRows, int kOutputs, class W>
HWY_INLINE void add_part(const float* x, const W* weight, int64_t k, int part, Native* sums) {
  Native of_weight[kOutputs];
#pragma GCC unroll 8
  for (int output = 0; output < kOutputs; ++output) of_weight[output] = load_part<kHalf>(weight + output * k, part);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    Native of_x = load_part<kHalf>(x + row * k, part);
    if (kNativeLanes > 4) simd::keep_in_register(of_x);  // compilers would load it again for each output
#pragma GCC unroll 8
    for (int output = 0; output < kOutputs; ++output) {
      Native& sum = sums[row * kOutputs + output];
      sum = hn::MulAdd(of_weight[output], of_x, sum);
    }
  }
}

// Whether a tile reads its weights from memory, or finds them in the cache.
enum class Weights { kFromMemory, kFromCache };

// x[row] . weight[output] for kRows rows and kOutputs outputs to y[row * stride + output]. A sum is added to in the
// order of k, so that its result does not depend on the tile. Not inlined: the copies would take longer to compile than
// the rest of the kernels.
template <int kRows, int kOutputs, Weights kWeights, class W, class Y>
HWY_NOINLINE void tile(const float* x, const W* weight, Y* y, int64_t k, int64_t stride) {
  constexpr int kSums = kRows * kOutputs;
  Native total[kRegistersOfSum * kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kRegistersOfSum * kSums; ++i) total[i] = hn::Zero(simd::Tag());
  int64_t i = 0;
  for (; i + kPairLanes <= k; i += kPairLanes) {
    if (kWeights == Weights::kFromMemory)
#pragma GCC unroll 8
      for (int output = 0; output < kOutputs; ++output)
        hwy::Prefetch(reinterpret_cast<const char*>(weight + output * k + i) + kPrefetchBytes);
#pragma GCC unroll 4
    for (int part = 0; part < kRegistersOfSum; ++part) {
      add_part<Half::kFirst, kRows, kOutputs>(x + i, weight + i, k, part, total + part * kSums);
      add_part<Half::kSecond, kRows, kOutputs>(x + i, weight + i, k, part, total + part * kSums);
    }
  }
  alignas(64) float lanes[kSums * kLanes];  // `total` lives in registers
#pragma GCC unroll 16
  for (int j = 0; j < kRegistersOfSum * kSums; ++j)
    hn::Store(total[j], simd::Tag(), lanes + j % kSums * kLanes + j / kSums * kNativeLanes);
  for (int j = 0; i < k && j < kSums; ++j)
    add_rest(x + j / kOutputs * k, weight + j % kOutputs * k, i, k, lanes + j * kLanes);
  Float whole[kSums];
  for (int j = 0; j < kSums; ++j) whole[j] = simd::load(lanes + j * kLanes);
  alignas(64) float results[kSums];
  simd::store_sums<kSums>(whole, results);
  for (int row = 0; row < kRows; ++row)
    for (int output = 0; output < kOutputs; ++output)
      y[row * stride + output] = from_float<Y>(results[row * kOutputs + output]);
}

// kGroup outputs of kRows rows.
template <int kRows, Weights kWeights, class W, class Y>
HWY_INLINE void group(const float* x, const W* weight, Y* y, int64_t k, int64_t stride) {
  constexpr int kOutputs = kRows == 1 ? kOutputsOfOneRow : tile_of_rows().outputs;
  for (int i = 0; i < kGroup; i += kOutputs) tile<kRows, kOutputs, kWeights>(x, weight + i * k, y + i, k, stride);
}

// The same of `rows`, at most kRows.
template <int kRows, Weights kWeights, class W, class Y>
HWY_INLINE void group_of(int64_t rows, const float* x, const W* weight, Y* y, int64_t k, int64_t stride) {
  if (rows == kRows) return group<kRows, kWeights>(x, weight, y, k, stride);
  if constexpr (kRows > 1) group_of<kRows - 1, kWeights>(rows, x, weight, y, k, stride);
}

template <class W, class Y>
HWY_INLINE void few_rows_of(const float* x, const W* weight, Y* y, int64_t rows, int64_t k, int64_t stride,
                            int64_t outputs) {
  constexpr int64_t kRows = tile_of_rows().rows;
  int64_t output = 0;
  for (; output + kGroup <= outputs; output += kGroup, weight += kGroup * k, y += kGroup) {
    group_of<kRows, Weights::kFromMemory>(std::min(rows, kRows), x, weight, y, k, stride);
    for (int64_t row = kRows; row < rows; row += kRows)
      group_of<kRows, Weights::kFromCache>(std::min(rows - row, kRows), x + row * k, weight, y + row * stride, k,
                                           stride);
  }
  for (; output < outputs; ++output, weight += k, ++y)
    for (int64_t row = 0; row < rows; ++row)
      tile<1, 1, Weights::kFromMemory>(x + row * k, weight, y + row * stride, k, stride);
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
