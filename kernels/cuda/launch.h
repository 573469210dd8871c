// What launch functions share. No LibTorch: these headers are read by nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace fsdp::kernels::cuda {

// Of the elements of an array whose type the host chooses at run time.
enum class Dtype : uint8_t { kFloat, kBFloat16, kHalf };

inline constexpr int kBlockThreads = 256;

// Blocks for `items` where each takes `items_per_block` at a time; kernels stride over what more than `most` would
// take.
inline unsigned num_blocks(int64_t items, int64_t items_per_block, int64_t most = int64_t{1} << 20) {
  return static_cast<unsigned>(std::clamp<int64_t>((items + items_per_block - 1) / items_per_block, 1, most));
}

}  // namespace fsdp::kernels::cuda
