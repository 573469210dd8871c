// y = round(silu(gate)) * up, element by element.
#include "kernels/cuda/model_launch.h"
#include "kernels/cuda/packets.cuh"

namespace fsdp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = int64_t{1} << 20;
constexpr int64_t kMostRowsAtOnce = 65535;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T>
struct Forward {
  const T *gate, *up;
  T* y;
  int64_t width, gate_stride, up_stride;

  template <int kCount>
  __device__ void at(int64_t row, int64_t i) const {
    float g[kCount], u[kCount];
    load_packet(gate + row * gate_stride + i, g);
    load_packet(up + row * up_stride + i, u);
#pragma unroll
    for (int j = 0; j < kCount; ++j) g[j] = round_to<T>(g[j] * sigmoid(g[j])) * u[j];
    store_packet(y + row * width + i, g);
  }
};

// silu'(g) = s * (1 + g * (1 - s)) with s = sigmoid(g). The product of the forward is made again, not read.
template <class T>
struct Backward {
  const T *grad_y, *gate, *up;
  T *grad_gate, *grad_up;
  int64_t width, gate_stride, up_stride, grad_stride;

  template <int kCount>
  __device__ void at(int64_t row, int64_t i) const {
    float grad[kCount], g[kCount], u[kCount];
    load_packet(grad_y + row * width + i, grad);
    load_packet(gate + row * gate_stride + i, g);
    load_packet(up + row * up_stride + i, u);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float s = sigmoid(g[j]);
      u[j] = round_to<T>(grad[j] * u[j]) * s * (1.0f + g[j] * (1.0f - s));
      grad[j] *= round_to<T>(g[j] * s);
    }
    store_packet(grad_gate + row * grad_stride + i, u);
    store_packet(grad_up + row * grad_stride + i, grad);
  }
};

// Blocks along x share a row, those along y the rows.
template <int kCount, class Work>
__global__ void __launch_bounds__(kThreads) run(Work work, int64_t rows) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads, packets = work.width / kCount;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    for (int64_t i = thread; i < packets; i += step) work.template at<kCount>(row, i * kCount);
    if (thread < work.width - packets * kCount) work.template at<1>(row, packets * kCount + thread);
  }
}

template <int kCount, class Work>
cudaError_t launch(const Work& work, int64_t rows, cudaStream_t stream) {
  if (rows * work.width == 0) return cudaSuccess;
  const int64_t blocks = (work.width / kCount + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMostBlocks)),
                  static_cast<unsigned>(std::min(rows, kMostRowsAtOnce)));
  run<kCount><<<grid, kThreads, 0, stream>>>(work, rows);
  return cudaGetLastError();
}

// A single row may end where it likes; the starts of several are packets apart only if all distances are.
int64_t common_width(int64_t rows, std::initializer_list<int64_t> distances) {
  int64_t bits = 0;
  for (const int64_t distance : distances) bits |= distance;
  return rows == 1 ? 0 : bits;
}

}  // namespace

cudaError_t launch_swiglu_forward(const SwiGluForward& a, cudaStream_t stream) {
  const int64_t distances = common_width(a.rows, {a.width, a.gate_stride, a.up_stride});
  return with_packets(a.element, distances, {a.gate, a.up, a.y}, [&](auto zero, auto count) {
    using T = decltype(zero);
    const Forward<T> work{static_cast<const T*>(a.gate),
                          static_cast<const T*>(a.up),
                          static_cast<T*>(a.y),
                          a.width,
                          a.gate_stride,
                          a.up_stride};
    return launch<decltype(count)::value>(work, a.rows, stream);
  });
}

cudaError_t launch_swiglu_backward(const SwiGluBackward& a, cudaStream_t stream) {
  const auto pointers = {a.grad_y, a.gate, a.up, static_cast<const void*>(a.grad_gate),
                         static_cast<const void*>(a.grad_up)};
  const int64_t distances = common_width(a.rows, {a.width, a.gate_stride, a.up_stride, a.grad_stride});
  return with_packets(a.element, distances, pointers, [&](auto zero, auto count) {
    using T = decltype(zero);
    const Backward<T> work{static_cast<const T*>(a.grad_y),
                           static_cast<const T*>(a.gate),
                           static_cast<const T*>(a.up),
                           static_cast<T*>(a.grad_gate),
                           static_cast<T*>(a.grad_up),
                           a.width,
                           a.gate_stride,
                           a.up_stride,
                           a.grad_stride};
    return launch<decltype(count)::value>(work, a.rows, stream);
  });
}

}  // namespace fsdp::kernels::cuda
