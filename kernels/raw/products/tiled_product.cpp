#include "kernels/raw/products/tiled_product.h"

#include <algorithm>
#include <cstring>

#include "kernels/raw/products/amx.h"
#include "kernels/raw/products/panels.h"

namespace fsdp::kernels::raw {
namespace {

// Of the weight, so many outputs are packed at a time, or as many as fill half of the second-level cache.
constexpr int64_t kOutputs = 256;
constexpr int64_t kPackedWords = int64_t{1} << 18;

// Deeper sums are made of parts: so many rows of them wait in that cache, spread over the sets of the first. Rows of x
// are copied, because those of such a depth often lie a power of two apart and would share a set.
constexpr int64_t kWholePairs = 2048;
constexpr int64_t kPartPairs = 512;
constexpr int64_t kRows = 1024;
constexpr int64_t kSumStride = kOutputs + kLanes;
constexpr int64_t kCopiedRows = 32;
constexpr int64_t kCopiedStride = kPartPairs + kLanes;

// Rows of a block of tiles that are as shallow as this stay in the first-level cache while they meet the weight.
constexpr int64_t kShallowPairs = 320;
constexpr int64_t kLeastRows = 96;

int64_t outputs_at_a_time(int64_t pairs) { return std::min(kOutputs, kPackedWords / pairs / kLanes * kLanes); }

const Bf16Pair* pairs_of(const Word* words) { return reinterpret_cast<const Bf16Pair*>(words); }

// Up to kRows rows and kOutputs outputs.
void multiply_in_parts(int64_t rows, int64_t outputs, int64_t pairs, const Bf16Pair* x, const Word* weight, Bf16* y,
                       int64_t stride, float* scratch) {
  Word* words = scratch;
  float* sums = words + kOutputs * kPartPairs;
  auto* copied = reinterpret_cast<Bf16Pair*>(sums + kRows * kSumStride);
  const int64_t width = whole_lanes(outputs);
  for (int64_t first = 0; first < pairs; first += kPartPairs) {
    const int64_t some = std::min(kPartPairs, pairs - first);
    pack_panel(weight + first, pairs, outputs, some, words, width);
    for (int64_t row = 0; row < rows; row += kCopiedRows) {
      const int64_t count = std::min(kCopiedRows, rows - row);
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(copied + i * kCopiedStride, x + (row + i) * pairs + first,
                    static_cast<size_t>(some) * sizeof(Bf16Pair));
      amx::pair_gemm(count, width, some, {copied, kCopiedStride, 1}, pairs_of(words), width, sums + row * kSumStride,
                     kSumStride, first > 0);
    }
  }
  narrow_rows(sums, kSumStride, rows, outputs, y, stride);
}

}  // namespace

bool pays_tiled_product(int64_t rows, int64_t k) { return rows >= (k / 2 <= kShallowPairs ? 1 : 2) * kLeastRows; }

int64_t tiled_product_scratch(int64_t k) {
  const int64_t pairs = k / 2;
  if (pairs <= kWholePairs) return outputs_at_a_time(pairs) * pairs;
  return kOutputs * kPartPairs + kRows * kSumStride + kCopiedRows * kCopiedStride;
}

void tiled_product(int64_t rows, int64_t outputs, int64_t k, const Bf16* x, const Bf16* weight, Bf16* y, int64_t stride,
                   float* scratch) {
  const int64_t pairs = k / 2;
  const bool in_parts = pairs > kWholePairs;
  const int64_t row_step = in_parts ? kRows : rows, output_step = in_parts ? kOutputs : outputs_at_a_time(pairs);
  for (int64_t row = 0; row < rows; row += row_step)
    for (int64_t output = 0; output < outputs; output += output_step) {
      const int64_t some = std::min(row_step, rows - row), count = std::min(output_step, outputs - output);
      const auto* from = reinterpret_cast<const Bf16Pair*>(x + row * k);
      const auto* with = reinterpret_cast<const Word*>(weight + output * k);
      Bf16* to = y + row * stride + output;
      if (in_parts) {
        multiply_in_parts(some, count, pairs, from, with, to, stride, scratch);
        continue;
      }
      pack_panel(with, pairs, count, pairs, scratch, whole_lanes(count));
      amx::multiply_rounded(some, count, pairs, {from, pairs, 1}, pairs_of(scratch), whole_lanes(count), to, stride);
    }
}

}  // namespace fsdp::kernels::raw
