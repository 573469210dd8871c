#pragma once

#include <cstdint>

namespace fsdp::kernels {

// How a loss over a vocabulary bounds the memory of its logits: see linear_cross_entropy() in
// kernels/operators/cross_entropy.h.
inline constexpr int64_t kLogitBytesAtATime = int64_t{1} << 25;
inline constexpr int64_t kMostLogitBytesKept = int64_t{1} << 26;
inline constexpr int64_t kMostGradientKept = int64_t{1} << 26;  // 256 MiB
// On CUDA.
inline constexpr int64_t kDeviceLogitBytesAtATime = int64_t{1} << 29;
inline constexpr int64_t kMostChunksInNarrowSum = 16;  // of a bf16 weight's gradient

}  // namespace fsdp::kernels
