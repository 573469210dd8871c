// (x1, x2) -> (x1 c1 - x2 s1, x2 c2 + x1 s2), or back, for the halves x1 and x2 of each head of q and k.
#include "kernels/cuda/model_launch.h"
#include "kernels/cuda/packets.cuh"
#include "kernels/cuda/teams.cuh"

namespace fsdp::kernels::cuda {
namespace {

constexpr int64_t kMostThreads = 256;

template <class T, int kCount, Turn kTurn>
__device__ inline void turn(const float (&x1)[kCount], const float (&x2)[kCount], const T* cos, const T* sin, int half,
                            float (&y1)[kCount], float (&y2)[kCount]) {
  float c1[kCount], c2[kCount], s1[kCount], s2[kCount];
  load_packet(cos, c1);
  load_packet(cos + half, c2);
  load_packet(sin, s1);
  load_packet(sin + half, s2);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if constexpr (kTurn == Turn::kForward) {
      y1[j] = round_to<T>(x1[j] * c1[j]) - round_to<T>(x2[j] * s1[j]);
      y2[j] = round_to<T>(x2[j] * c2[j]) + round_to<T>(x1[j] * s2[j]);
    } else {
      y1[j] = round_to<T>(x1[j] * c1[j]) + round_to<T>(x2[j] * s2[j]);
      y2[j] = round_to<T>(x2[j] * c2[j]) - round_to<T>(x1[j] * s1[j]);
    }
  }
}

__device__ inline int64_t start_of(const HeadStrides& strides, int64_t row, int64_t position, int64_t head) {
  return row * strides.row + position * strides.token + head * strides.head;
}

// One block per token; its threads share the packets of the first halves of all heads, those of q first.
template <class T, int kCount, Turn kTurn>
__global__ void turn_tokens(Rope a) {
  const int64_t token = blockIdx.x, row = token / a.length, position = token % a.length;
  const int dim = static_cast<int>(a.dim), half = dim / 2, packets = half / kCount;
  const int64_t table = row * a.table_stride + position * dim;
  const T *cos = static_cast<const T*>(a.cos) + table, *sin = static_cast<const T*>(a.sin) + table;
  const int query_heads = static_cast<int>(a.q.heads), heads = query_heads + static_cast<int>(a.k.heads);
  float x1[kCount], x2[kCount], y1[kCount], y2[kCount];
  for (int item = static_cast<int>(threadIdx.x); item < heads * packets; item += static_cast<int>(blockDim.x)) {
    const int head_of_both = item / packets, i = item % packets * kCount;
    const bool is_query = head_of_both < query_heads;
    const RopeHeads& x = is_query ? a.q : a.k;
    const int head = is_query ? head_of_both : head_of_both - query_heads;
    const T* from = static_cast<const T*>(x.from) + start_of(x.from_strides, row, position, head) + i;
    T* to = static_cast<T*>(x.to) + start_of(x.to_strides, row, position, head) + i;
    load_packet(from, x1);
    load_packet(from + half, x2);
    turn<T, kCount, kTurn>(x1, x2, cos + i, sin + i, half, y1, y2);
    store_packet(to, y1);
    store_packet(to + half, y2);
  }
}

template <class T, int kCount>
cudaError_t run(const Rope& a, cudaStream_t stream) {
  const auto tokens = static_cast<unsigned>(a.rows * a.length);
  const unsigned threads = threads_for((a.q.heads + a.k.heads) * (a.dim / 2 / kCount), kMostThreads);
  if (a.turn == Turn::kForward)
    turn_tokens<T, kCount, Turn::kForward><<<tokens, threads, 0, stream>>>(a);
  else
    turn_tokens<T, kCount, Turn::kBackward><<<tokens, threads, 0, stream>>>(a);
  return cudaGetLastError();
}

// What the starts of halves are apart, as one number: a multiple of a packet only if all distances are.
int64_t common_width(const Rope& a) {
  int64_t bits = a.dim / 2;
  for (const RopeHeads& x : {a.q, a.k}) {
    for (const HeadStrides& strides : {x.from_strides, x.to_strides})
      bits |= strides.row | strides.token | strides.head;
  }
  return bits;
}

}  // namespace

cudaError_t launch_rope(const Rope& a, cudaStream_t stream) {
  if (a.rows * a.length == 0 || a.dim == 0) return cudaSuccess;
  const auto pointers = {a.q.from, a.k.from, static_cast<const void*>(a.q.to), static_cast<const void*>(a.k.to),
                         a.cos,    a.sin};
  return with_packets(a.element, common_width(a), pointers,
                      [&](auto zero, auto count) { return run<decltype(zero), decltype(count)::value>(a, stream); });
}

}  // namespace fsdp::kernels::cuda
