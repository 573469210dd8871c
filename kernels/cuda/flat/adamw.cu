#include "kernels/cuda/flat/adamw.cuh"
#include "kernels/cuda/flat/flat.cuh"
#include "kernels/cuda/flat/step_launch.h"

namespace fsdp::kernels::cuda {
namespace {

// 28 bytes an element (16 read, 12 written) and the copy's. Copy: type of its elements; without a copy it is not used.
template <class Copy, bool kHasCopy>
struct AdamWBody {
  float* weight;
  const float* gradient;
  float* m;
  float* v;
  Copy* copy;
  const float* gradient_scale;
  AdamWFactors factors;

  __device__ float scale() const { return gradient_scale_of(factors.gradient, gradient_scale); }

  __device__ void four(int64_t i) const {
    float4 w = load4(weight + i), first = load4(m + i), second = load4(v + i);
    const float4 g = load4(gradient + i);
    const float s = scale();
    adamw_update(w.x, g.x, first.x, second.x, factors, s);
    adamw_update(w.y, g.y, first.y, second.y, factors, s);
    adamw_update(w.z, g.z, first.z, second.z, factors, s);
    adamw_update(w.w, g.w, first.w, second.w, factors, s);
    store4(weight + i, w);
    store4(m + i, first);
    store4(v + i, second);
    if constexpr (kHasCopy) store4(copy + i, w);
  }

  __device__ void one(int64_t i) const {
    adamw_update(weight[i], gradient[i], m[i], v[i], factors, scale());
    if constexpr (kHasCopy) copy[i] = from_float<Copy>(weight[i]);
  }
};

template <class Copy, bool kHasCopy>
cudaError_t launch(const AdamWArrays& a, const AdamWFactors& factors, cudaStream_t stream) {
  auto* copy = static_cast<Copy*>(a.copy);
  const AdamWBody<Copy, kHasCopy> body{a.weight, a.gradient, a.m, a.v, copy, a.gradient_scale, factors};
  return launch_flat(body, a.n, {a.weight, a.gradient, a.m, a.v, copy}, stream);
}

}  // namespace

cudaError_t launch_adamw(const AdamWArrays& arrays, const AdamWFactors& factors, cudaStream_t stream) {
  if (arrays.copy == nullptr) return launch<float, false>(arrays, factors, stream);
  return with_type(arrays.copy_dtype, [&](auto zero) { return launch<decltype(zero), true>(arrays, factors, stream); });
}

}  // namespace fsdp::kernels::cuda
