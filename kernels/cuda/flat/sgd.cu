#include "kernels/cuda/flat/adamw.cuh"
#include "kernels/cuda/flat/flat.cuh"
#include "kernels/cuda/flat/step_launch.h"

namespace fsdp::kernels::cuda {
namespace {

// Every operation rounds as written, as in adamw.cuh.
template <Momentum kMomentum>
__device__ inline void update(float& w, float g, float& buffer, const SGDFactors& f, float scale) {
  const float gradient = __fmaf_rn(f.weight_decay, w, __fmul_rn(g, scale));
  float direction = gradient;
  if constexpr (kMomentum != Momentum::kNone) {
    buffer = __fmaf_rn(f.momentum, buffer, __fmul_rn(f.keep, gradient));
    direction = kMomentum == Momentum::kPlain ? buffer : __fmaf_rn(f.look_ahead, buffer, gradient);
  }
  w = __fmaf_rn(-f.lr, direction, w);
}

template <class Copy, Momentum kMomentum>
struct SGDBody {
  float* weight;
  const float* gradient;
  float* buffer;
  Copy* copy;
  const float* gradient_scale;
  SGDFactors factors;

  __device__ float scale() const { return gradient_scale_of(factors.gradient, gradient_scale); }

  __device__ void four(int64_t i) const {
    float4 w = load4(weight + i), state = {};
    if constexpr (kMomentum != Momentum::kNone) state = load4(buffer + i);
    const float4 g = load4(gradient + i);
    const float s = scale();
    update<kMomentum>(w.x, g.x, state.x, factors, s);
    update<kMomentum>(w.y, g.y, state.y, factors, s);
    update<kMomentum>(w.z, g.z, state.z, factors, s);
    update<kMomentum>(w.w, g.w, state.w, factors, s);
    store4(weight + i, w);
    if constexpr (kMomentum != Momentum::kNone) store4(buffer + i, state);
    if (copy != nullptr) store4(copy + i, w);
  }

  __device__ void one(int64_t i) const {
    float state = 0;
    if constexpr (kMomentum != Momentum::kNone) state = buffer[i];
    update<kMomentum>(weight[i], gradient[i], state, factors, scale());
    if constexpr (kMomentum != Momentum::kNone) buffer[i] = state;
    if (copy != nullptr) copy[i] = from_float<Copy>(weight[i]);
  }
};

template <class Copy, Momentum kMomentum>
cudaError_t launch(const SGDArrays& a, const SGDFactors& factors, cudaStream_t stream) {
  auto* copy = static_cast<Copy*>(a.copy);
  const SGDBody<Copy, kMomentum> body{a.weight, a.gradient, a.buffer, copy, a.gradient_scale, factors};
  return launch_flat(body, a.n, {a.weight, a.gradient, a.buffer, copy}, stream);
}

}  // namespace

cudaError_t launch_sgd(const SGDArrays& arrays, const SGDFactors& factors, Momentum momentum, cudaStream_t stream) {
  return with_type(arrays.copy_dtype, [&](auto zero) {
    using Copy = decltype(zero);
    if (momentum == Momentum::kNone) return launch<Copy, Momentum::kNone>(arrays, factors, stream);
    if (momentum == Momentum::kPlain) return launch<Copy, Momentum::kPlain>(arrays, factors, stream);
    return launch<Copy, Momentum::kNesterov>(arrays, factors, stream);
  });
}

}  // namespace fsdp::kernels::cuda
