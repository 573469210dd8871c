#include "kernels/cuda/flat/flat.cuh"
#include "kernels/cuda/flat/flat_launch.h"

namespace fsdp::kernels::cuda {
namespace {

// In fp32, rounded once to the destination's type.
template <class Out, class In, Placing kPlacing>
struct PackBody {
  Out* destination;
  const In* gradient;
  float scale;

  __device__ float placed(float before, float value) const {
    return kPlacing == Placing::kAdd ? __fmaf_rn(value, scale, before) : __fmul_rn(value, scale);
  }

  __device__ void four(int64_t i) const {
    const float4 value = load4(gradient + i);
    float4 before = {};
    if constexpr (kPlacing == Placing::kAdd) before = load4(destination + i);
    store4(destination + i, make_float4(placed(before.x, value.x), placed(before.y, value.y), placed(before.z, value.z),
                                        placed(before.w, value.w)));
  }

  __device__ void one(int64_t i) const {
    float before = 0;
    if constexpr (kPlacing == Placing::kAdd) before = to_float(destination[i]);
    destination[i] = from_float<Out>(placed(before, to_float(gradient[i])));
  }
};

template <class Out, class In, Placing kPlacing>
cudaError_t launch(const PackArrays& arrays, float scale, cudaStream_t stream) {
  auto* destination = static_cast<Out*>(arrays.destination);
  const auto* gradient = static_cast<const In*>(arrays.gradient);
  return launch_flat(PackBody<Out, In, kPlacing>{destination, gradient, scale}, arrays.n, {destination, gradient},
                     stream);
}

}  // namespace

cudaError_t launch_pack(const PackArrays& arrays, float scale, Placing placing, cudaStream_t stream) {
  return with_type(arrays.destination_dtype, [&](auto out) {
    return with_type(arrays.gradient_dtype, [&](auto in) {
      using Out = decltype(out);
      using In = decltype(in);
      if (placing == Placing::kAdd) return launch<Out, In, Placing::kAdd>(arrays, scale, stream);
      return launch<Out, In, Placing::kWrite>(arrays, scale, stream);
    });
  });
}

}  // namespace fsdp::kernels::cuda
