// y = round(silu(gate)) * up, element by element.
#include "kernels/cuda/model_launch.h"
#include "kernels/cuda/packets.cuh"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = int64_t{1} << 20;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T>
struct Forward {
  const T *gate, *up;
  T* y;

  template <int kCount>
  __device__ void at(int64_t i) const {
    float g[kCount], u[kCount];
    load_packet(gate + i, g);
    load_packet(up + i, u);
#pragma unroll
    for (int j = 0; j < kCount; ++j) g[j] = round_to<T>(g[j] * sigmoid(g[j])) * u[j];
    store_packet(y + i, g);
  }
};

// silu'(g) = s * (1 + g * (1 - s)) with s = sigmoid(g). The product of the forward is made again, not read.
template <class T>
struct Backward {
  const T *grad_y, *gate, *up;
  T *grad_gate, *grad_up;

  template <int kCount>
  __device__ void at(int64_t i) const {
    float grad[kCount], g[kCount], u[kCount];
    load_packet(grad_y + i, grad);
    load_packet(gate + i, g);
    load_packet(up + i, u);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float s = sigmoid(g[j]);
      u[j] = round_to<T>(grad[j] * u[j]) * s * (1.0f + g[j] * (1.0f - s));
      grad[j] *= round_to<T>(g[j] * s);
    }
    store_packet(grad_gate + i, u);
    store_packet(grad_up + i, grad);
  }
};

template <int kCount, class Work>
__global__ void __launch_bounds__(kThreads) run(Work work, int64_t n) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads, packets = n / kCount;
  for (int64_t i = thread; i < packets; i += step) work.template at<kCount>(i * kCount);
  if (thread < n - packets * kCount) work.template at<1>(packets * kCount + thread);
}

template <int kCount, class Work>
cudaError_t launch(const Work& work, int64_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const int64_t blocks = (n / kCount + kThreads - 1) / kThreads;
  run<kCount><<<static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMostBlocks)), kThreads, 0, stream>>>(work, n);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_swiglu_forward(const SwiGluForward& a, cudaStream_t stream) {
  return with_packets(a.element, 0, {a.gate, a.up, a.y}, [&](auto zero, auto count) {
    using T = decltype(zero);
    const Forward<T> work{static_cast<const T*>(a.gate), static_cast<const T*>(a.up), static_cast<T*>(a.y)};
    return launch<decltype(count)::value>(work, a.n, stream);
  });
}

cudaError_t launch_swiglu_backward(const SwiGluBackward& a, cudaStream_t stream) {
  const auto pointers = {a.grad_y, a.gate, a.up, static_cast<const void*>(a.grad_gate),
                         static_cast<const void*>(a.grad_up)};
  return with_packets(a.element, 0, pointers, [&](auto zero, auto count) {
    using T = decltype(zero);
    const Backward<T> work{static_cast<const T*>(a.grad_y), static_cast<const T*>(a.gate), static_cast<const T*>(a.up),
                           static_cast<T*>(a.grad_gate), static_cast<T*>(a.grad_up)};
    return launch<decltype(count)::value>(work, a.n, stream);
  });
}

}  // namespace fsdp::kernels::cuda
