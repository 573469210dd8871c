// Four elements at a time, in fp32: loads of 16 bytes (fp32) or 8 (bf16, fp16) with neighbouring threads side by side.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/launch.h"

namespace fsdp::kernels::cuda {

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float to_float(__half value) { return __half2float(value); }

// Rounded to nearest, ties to even.
template <class T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x, y, z, w;
};

// `from` is a multiple of four elements, counted from address 0.
template <class T>
__device__ inline float4 load4(const T* from) {
  const Four<T> raw = *reinterpret_cast<const Four<T>*>(from);
  return make_float4(to_float(raw.x), to_float(raw.y), to_float(raw.z), to_float(raw.w));
}

// One store each: of four numbers that it rounded, the compiler makes four.
__device__ inline void store4(float* to, float4 values) { *reinterpret_cast<float4*>(to) = values; }

template <class Pair>
__device__ inline uint2 bits_of(Pair first, Pair second) {
  static_assert(sizeof(Pair) == sizeof(unsigned));
  uint2 bits;
  memcpy(&bits.x, &first, sizeof(first));
  memcpy(&bits.y, &second, sizeof(second));
  return bits;
}

__device__ inline void store4(__nv_bfloat16* to, float4 values) {
  *reinterpret_cast<uint2*>(to) =
      bits_of(__floats2bfloat162_rn(values.x, values.y), __floats2bfloat162_rn(values.z, values.w));
}

__device__ inline void store4(__half* to, float4 values) {
  *reinterpret_cast<uint2*>(to) = bits_of(__floats2half2_rn(values.x, values.y), __floats2half2_rn(values.z, values.w));
}

// Calls visitor(T{}) with the element type that `dtype` names.
template <class Visitor>
cudaError_t with_type(Dtype dtype, Visitor&& visitor) {
  if (dtype == Dtype::kFloat) return visitor(float{});
  if (dtype == Dtype::kBFloat16) return visitor(__nv_bfloat16{});
  return visitor(__half{});
}

}  // namespace fsdp::kernels::cuda
