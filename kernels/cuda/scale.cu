// Multiplication by a number that lies on the device.
#include "kernels/cuda/model_launch.h"
#include "kernels/cuda/packets.cuh"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = int64_t{1} << 20;

// Number of the first element of this thread's i-th packet, for packets dealt out to all threads in turn.
template <int kCount>
__device__ inline int64_t first_of_thread() {
  return (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kCount;
}

template <int kCount>
__device__ inline int64_t stride_of_threads() {
  return static_cast<int64_t>(gridDim.x) * kThreads * kCount;
}

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) scale(T* values, int64_t n, const float* factor) {
  const float by = *factor;
  if (by == 1.0f) return;
  float packet[kCount];
  for (int64_t i = first_of_thread<kCount>(); i < n; i += stride_of_threads<kCount>()) {
    load_packet(values + i, packet);
#pragma unroll
    for (int j = 0; j < kCount; ++j) packet[j] *= by;
    store_packet(values + i, packet);
  }
}

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads) copy_scaled(ScaledCopy a) {
  const float by = a.scale * *a.factor;
  const T* values = static_cast<const T*>(a.values);
  float packet[kCount], total[kCount] = {};
  for (int64_t i = first_of_thread<kCount>(); i < a.n; i += stride_of_threads<kCount>()) {
    load_packet(values + i, packet);
    if (a.fill == Fill::kAdd) load_packet(a.target + i, total);
#pragma unroll
    for (int j = 0; j < kCount; ++j) packet[j] = packet[j] * by + total[j];
    store_packet(a.target + i, packet);
  }
}

template <int kCount>
unsigned blocks_for(int64_t n) {
  return static_cast<unsigned>(std::min((n / kCount + kThreads - 1) / kThreads + 1, kMostBlocks));
}

}  // namespace

cudaError_t launch_scale(void* values, Element element, int64_t n, const float* factor, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  return with_packets(element, n, {values}, [&](auto zero, auto count) {
    using T = decltype(zero);
    constexpr int kCount = decltype(count)::value;
    scale<T, kCount><<<blocks_for<kCount>(n), kThreads, 0, stream>>>(static_cast<T*>(values), n, factor);
    return cudaGetLastError();
  });
}

cudaError_t launch_scaled_copy(const ScaledCopy& a, cudaStream_t stream) {
  if (a.n == 0) return cudaSuccess;
  return with_packets(a.element, a.n, {a.values, a.target}, [&](auto zero, auto count) {
    constexpr int kCount = decltype(count)::value;
    copy_scaled<decltype(zero), kCount><<<blocks_for<kCount>(a.n), kThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

}  // namespace fsdp::kernels::cuda
