// Elementwise work on flat arrays of one length, wherever they start.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/flat/vectors.cuh"
#include "kernels/cuda/launch.h"

namespace fsdp::kernels::cuda {

// Where an array of the work starts.
struct Start {
  template <class T>
  Start(const T* pointer) : address(reinterpret_cast<uintptr_t>(pointer)), element_bytes(sizeof(T)) {}

  // Elements before the first whose address is a multiple of four elements.
  int64_t elements_to_border() const {
    const uintptr_t past = address / element_bytes % 4;
    return past == 0 ? 0 : static_cast<int64_t>(4 - past);
  }

  uintptr_t address;
  size_t element_bytes;
};

// How n elements are cut: `head` one by one, then fours, then the rest one by one. Arrays that reach their borders at
// different elements are worked on one by one altogether.
struct Cut {
  int64_t n;
  int64_t head;
  int64_t fours;

  __host__ __device__ int64_t singles() const { return n - 4 * fours; }
  // The i-th of those that are worked on one by one.
  __host__ __device__ int64_t single(int64_t i) const { return i < head ? i : i + 4 * fours; }
};

// Null pointers do not count.
inline Cut make_cut(int64_t n, std::initializer_list<Start> starts) {
  int64_t head = -1;
  for (const Start& start : starts) {
    if (start.address == 0) continue;
    const int64_t border = start.elements_to_border();
    if (head >= 0 && border != head) return {n, n, 0};
    head = border;
  }
  head = std::min(std::max<int64_t>(head, 0), n);
  return {n, head, (n - head) / 4};
}

// Body: four(i) works on the elements i to i+3, one(i) on element i, with the same bits, so that a result does not
// depend on where a range starts.
template <class Body>
__global__ void __launch_bounds__(kBlockThreads) run_flat(const __grid_constant__ Body body, Cut cut) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x;
  const int64_t num_threads = static_cast<int64_t>(gridDim.x) * kBlockThreads;
  for (int64_t i = thread; i < cut.fours; i += num_threads) body.four(cut.head + 4 * i);
  for (int64_t i = thread; i < cut.singles(); i += num_threads) body.one(cut.single(i));
}

// `starts`: of all arrays that the body reads or writes.
template <class Body>
cudaError_t launch_flat(const Body& body, int64_t n, std::initializer_list<Start> starts, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const Cut cut = make_cut(n, starts);
  run_flat<<<num_blocks(std::max(cut.fours, cut.singles()), kBlockThreads), kBlockThreads, 0, stream>>>(body, cut);
  return cudaGetLastError();
}

}  // namespace fsdp::kernels::cuda
