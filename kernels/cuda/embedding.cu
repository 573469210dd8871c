// Rows of a table by index, and the sum of their gradients by sorted index: without atomics, so always the same bits.
// Equal ids are added in the order of their positions; more than kLongRun of them in pieces.
#include <cmath>

#include "kernels/cuda/model_launch.h"
#include "kernels/cuda/packets.cuh"
#include "kernels/cuda/teams.cuh"

namespace fsdp::kernels::cuda {
namespace {

constexpr int64_t kMostThreads = 128;
constexpr int kAhead = 8;         // rows on their way to a thread at a time
constexpr int64_t kLongRun = 64;  // longer runs of equal ids are cut among the warps of a block
constexpr int kWarpsOfRun = 16;

__device__ inline bool is_in_table(int64_t id, int64_t rows) { return id >= 0 && id < rows; }

// One block per id.
template <class T, int kCount>
__global__ void copy_rows(EmbeddingRows a) {
  const int64_t i = blockIdx.x, id = a.ids[i], step = static_cast<int64_t>(blockDim.x) * kCount;
  const bool is_known = is_in_table(id, a.table_rows);
  const T* from = static_cast<const T*>(a.table) + (is_known ? id : 0) * a.width;
  T* to = static_cast<T*>(a.y) + i * a.width;
  float values[kCount];
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kCount; column < a.width; column += step) {
    if (is_known) {
      load_packet(from + column, values);
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] = NAN;
    }
    store_packet(to + column, values);
  }
}

// Where the run of equal ids that begins at `first` ends: strides that double, then halves.
__device__ inline int64_t end_of_run(const EmbeddingGradient& a, int64_t first) {
  const int64_t id = a.sorted_ids[first];
  int64_t last = first, stride = 1;  // `last` is in the run
  while (last + stride < a.n && a.sorted_ids[last + stride] == id) {
    last += stride;
    stride *= 2;
  }
  for (; stride > 0; stride /= 2) {
    if (last + stride < a.n && a.sorted_ids[last + stride] == id) last += stride;
  }
  return last + 1;
}

// Adds the gradients of the positions begin to end, in order; several are on their way before the first is added.
template <class T, int kCount>
__device__ inline void add_positions(const EmbeddingGradient& a, int64_t begin, int64_t end, int64_t column,
                                     float (&sum)[kCount]) {
  const T* grad = static_cast<const T*>(a.grad) + column;
  Packet<T, kCount> rows[kAhead];
  for (int64_t i = begin; i < end; i += kAhead) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k < end) rows[k] = *reinterpret_cast<const Packet<T, kCount>*>(grad + a.order[i + k] * a.width);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k >= end) return;
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum[j] += widen(rows[k].values[j]) * a.scale;
    }
  }
}

// One block per position and tile of columns; those that begin a run of equal ids work, unless it is long.
template <class T, class U, int kCount>
__global__ void sum_runs(EmbeddingGradient a) {
  const int64_t i = blockIdx.x, id = a.sorted_ids[i];
  if ((i > 0 && a.sorted_ids[i - 1] == id) || !is_in_table(id, a.table_rows)) return;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kCount;
  const int64_t end = end_of_run(a, i);
  if (column >= a.width || end - i > kLongRun) return;
  U* to = static_cast<U*>(a.table) + id * a.width + column;
  float sum[kCount] = {};
  if (a.fill == Fill::kAdd) load_packet(to, sum);
  add_positions<T, kCount>(a, i, end, column, sum);
  store_packet(to, sum);
}

// The most frequent id of a text has thousands of positions. One block per kLongRun positions and tile of as many
// packets as a warp has threads; the first such position inside a long run works on all of it: each warp adds up a
// piece, then the first adds up the pieces, in order.
template <class T, class U, int kCount>
__global__ void __launch_bounds__(kWarpsOfRun* kWarp) sum_long_runs(EmbeddingGradient a) {
  __shared__ float pieces[kWarpsOfRun][kWarp][kCount];
  const int64_t inside = blockIdx.x * kLongRun, id = a.sorted_ids[inside];
  if (!is_in_table(id, a.table_rows) || (inside > 0 && a.sorted_ids[inside - kLongRun] == id)) return;
  int64_t begin = inside;
  for (int64_t stride = kLongRun / 2; stride > 0; stride /= 2) {
    if (begin - stride >= 0 && a.sorted_ids[begin - stride] == id) begin -= stride;
  }
  const int64_t end = end_of_run(a, inside), length = end - begin;
  if (length <= kLongRun) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kWarp + lane) * kCount;
  const int64_t first = begin + length * warp / kWarpsOfRun, last = begin + length * (warp + 1) / kWarpsOfRun;
  float sum[kCount] = {};
  if (column < a.width) add_positions<T, kCount>(a, first, last, column, sum);
#pragma unroll
  for (int j = 0; j < kCount; ++j) pieces[warp][lane][j] = sum[j];
  __syncthreads();
  if (warp > 0 || column >= a.width) return;
  U* to = static_cast<U*>(a.table) + id * a.width + column;
  float total[kCount] = {};
  if (a.fill == Fill::kAdd) load_packet(to, total);
  for (int other = 0; other < kWarpsOfRun; ++other) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) total[j] += pieces[other][lane][j];
  }
  store_packet(to, total);
}

template <class T, class U, int kCount>
cudaError_t run_sums(const EmbeddingGradient& a, cudaStream_t stream) {
  const int64_t packets = (a.width + kCount - 1) / kCount;
  const unsigned threads = threads_for(packets, kMostThreads);
  const dim3 blocks(static_cast<unsigned>(a.n), static_cast<unsigned>((packets + threads - 1) / threads));
  sum_runs<T, U, kCount><<<blocks, threads, 0, stream>>>(a);
  if (a.n > kLongRun) {
    const dim3 long_blocks(static_cast<unsigned>((a.n + kLongRun - 1) / kLongRun),
                           static_cast<unsigned>((packets + kWarp - 1) / kWarp));
    sum_long_runs<T, U, kCount><<<long_blocks, kWarpsOfRun * kWarp, 0, stream>>>(a);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_embedding_rows(const EmbeddingRows& a, cudaStream_t stream) {
  if (a.n == 0 || a.width == 0) return cudaSuccess;
  return with_packets(a.element, a.width, {a.table, a.y}, [&](auto zero, auto count) {
    constexpr int kCount = decltype(count)::value;
    const unsigned threads = threads_for((a.width + kCount - 1) / kCount, kMostThreads);
    copy_rows<decltype(zero), kCount><<<static_cast<unsigned>(a.n), threads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t launch_embedding_gradient(const EmbeddingGradient& a, cudaStream_t stream) {
  if (a.n == 0 || a.width == 0) return cudaSuccess;
  return with_packets(a.grad_element, a.width, {a.grad, a.table}, [&](auto zero, auto count) {
    using T = decltype(zero);
    constexpr int kCount = decltype(count)::value;
    return a.table_element == Element::kFloat ? run_sums<T, float, kCount>(a, stream)
                                              : run_sums<T, T, kCount>(a, stream);
  });
}

}  // namespace fsdp::kernels::cuda
