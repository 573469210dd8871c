// Attention of one token over cached keys and values, block by block, so that threads share the keys of a long text.
// T: float or Bf16. Single-threaded, allocate nothing.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

inline constexpr int64_t kCachedBlock = 256;  // keys

// At most kCachedBlock keys of one key head, and the queries that read them.
template <class T>
struct CachedBlock {
  const T *k, *v;        // [count, W], W a multiple of 16, zero padded
  const float* queries;  // [G, W], scaled, zero padded
  int64_t count, width, group;

  static int64_t partial_size(int64_t group, int64_t width) { return group * (width + kLanes); }
};

// To partial, for each query of the group: the highest score, the sum of e^(score - highest), and from the 16th number
// on the mix [W] of v that those weigh.
void attend_block(const CachedBlock<float>& block, float* partial);
void attend_block(const CachedBlock<Bf16>& block, float* partial);

}  // namespace fsdp::kernels::raw
