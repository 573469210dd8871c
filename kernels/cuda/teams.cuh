// Threads that share a row, and what they make of their parts of it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace fsdp::kernels::cuda {

inline constexpr int kWarp = 32;

struct Sum {
  template <class V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};
struct Highest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Of all threads of a warp, in a fixed order, the same in each of them. Every thread of the warp calls it.
template <class V, class Combine>
__device__ inline V over_warp(V value, Combine combine) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, distance));
  return value;
}

// Of all threads of a block of whole warps, likewise.
template <class V, class Combine>
__device__ inline V over_block(V value, Combine combine) {
  __shared__ V of_warp[kWarp];
  value = over_warp(value, combine);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  V result = of_warp[0];
  for (int i = 1; i < warps; ++i) result = combine(result, of_warp[i]);
  __syncthreads();  // the next call writes there
  return result;
}

// A row is worked on by one warp or by the whole block.
enum class TeamKind : uint8_t { kWarp, kBlock };

template <TeamKind kKind>
struct Team {
  static constexpr bool kIsWarp = kKind == TeamKind::kWarp;

  // Of this block's teams, and of this team's threads.
  __device__ int index() const { return kIsWarp ? static_cast<int>(threadIdx.x) / kWarp : 0; }
  __device__ int count() const { return kIsWarp ? static_cast<int>(blockDim.x) / kWarp : 1; }
  __device__ int member() const { return static_cast<int>(kIsWarp ? threadIdx.x % kWarp : threadIdx.x); }
  __device__ int members() const { return kIsWarp ? kWarp : static_cast<int>(blockDim.x); }

  __device__ float sum(float value) const {
    if constexpr (kIsWarp)
      return over_warp(value, Sum{});
    else
      return over_block(value, Sum{});
  }
};

// Threads of a block for rows of so many packets: whole warps, at most `most`.
inline unsigned threads_for(int64_t packets, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>((packets + kWarp - 1) / kWarp * kWarp, kWarp, most));
}

}  // namespace fsdp::kernels::cuda
