// Rows of a table by index, and the sum of their gradients by sorted index: without atomics, so always the same bits.
#include <cmath>

#include "kernels/cuda/model_launch.h"
#include "kernels/cuda/packets.cuh"
#include "kernels/cuda/teams.cuh"

namespace fsdp::kernels::cuda {
namespace {

constexpr int64_t kMostThreads = 128;
constexpr int kAhead = 4;  // rows on their way to a thread at a time

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

// Adds the gradients of the positions from `first` on that have the same id, in order; several are loaded before the
// first is added.
template <class T, int kCount>
__device__ inline void add_run(const EmbeddingGradient& a, int64_t first, int64_t column, float (&sum)[kCount]) {
  const T* grad = static_cast<const T*>(a.grad) + column;
  const int64_t id = a.sorted_ids[first];
  float rows[kAhead][kCount];
  bool is_same[kAhead];
  for (int64_t i = first; i < a.n; i += kAhead) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      is_same[k] = i + k < a.n && a.sorted_ids[i + k] == id;
      if (is_same[k]) load_packet(grad + a.order[i + k] * a.width, rows[k]);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (!is_same[k]) return;  // what follows has another id, too
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum[j] += rows[k][j] * a.scale;
    }
  }
}

// One block per position and tile of columns; those that begin a run of equal ids work.
template <class T, class U, int kCount>
__global__ void sum_runs(EmbeddingGradient a) {
  const int64_t i = blockIdx.x, id = a.sorted_ids[i];
  if ((i > 0 && a.sorted_ids[i - 1] == id) || !is_in_table(id, a.table_rows)) return;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kCount;
  if (column >= a.width) return;
  U* to = static_cast<U*>(a.table) + id * a.width + column;
  float sum[kCount] = {};
  if (a.fill == Fill::kAdd) load_packet(to, sum);
  add_run<T, kCount>(a, i, column, sum);
  store_packet(to, sum);
}

template <class T, class U, int kCount>
cudaError_t run_sums(const EmbeddingGradient& a, cudaStream_t stream) {
  const int64_t packets = (a.width + kCount - 1) / kCount;
  const unsigned threads = threads_for(packets, kMostThreads);
  const dim3 blocks(static_cast<unsigned>(a.n), static_cast<unsigned>((packets + threads - 1) / threads));
  sum_runs<T, U, kCount><<<blocks, threads, 0, stream>>>(a);
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
