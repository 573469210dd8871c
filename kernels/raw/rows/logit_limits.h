#pragma once

#include <algorithm>
#include <cstdint>

namespace fsdp::kernels {

// How a loss over a vocabulary bounds the memory of its logits: see linear_cross_entropy() in
// kernels/operators/cross_entropy.h.
inline constexpr int64_t kLogitBytesAtATime = int64_t{1} << 25;
inline constexpr int64_t kMostLogitBytesKept = int64_t{1} << 26;
inline constexpr int64_t kMostGradientKept = int64_t{1} << 26;  // 256 MiB

// Rows whose logits, of `row_bytes` each, are there at a time: as equal parts of all rows as there are, since libraries
// sum over a vocabulary for one or two rows ten times less exactly than for many.
constexpr int64_t logit_rows_at_a_time(int64_t rows, int64_t row_bytes) {
  const int64_t fit = std::max<int64_t>(1, kLogitBytesAtATime / std::max<int64_t>(1, row_bytes));
  const int64_t parts = std::max<int64_t>(1, (rows + fit - 1) / fit);
  return (rows + parts - 1) / parts;
}

// On CUDA.
inline constexpr int64_t kDeviceLogitBytesAtATime = int64_t{1} << 29;
inline constexpr int64_t kMostChunksInNarrowSum = 16;  // of a bf16 weight's gradient

}  // namespace fsdp::kernels
