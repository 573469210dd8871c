// Elements of fp32, bf16 and fp16 arrays, computed with in fp32, 16 bytes at a time where that is possible.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/model_launch.h"

namespace fsdp::kernels::cuda {

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float widen(__half value) { return __half2float(value); }

template <class T>
__device__ inline T narrow_to(float value) {
  if constexpr (std::is_same_v<T, float>)
    return value;
  else if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(value);
  else
    return __float2bfloat16_rn(value);
}

// As a value that was stored and loaded again.
template <class T>
__device__ inline float round_to(float value) {
  return widen(narrow_to<T>(value));
}

template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Packet {
  T values[kCount];
};

// Of kCount elements, so many go with one instruction.
template <class T, int kCount>
inline constexpr int kPiece = kCount * sizeof(T) > 16 ? 16 / static_cast<int>(sizeof(T)) : kCount;

// `from` and `to` are multiples of 16 bytes, or kCount is 1.
template <int kCount, class T>
__device__ inline void load_packet(const T* from, float (&to)[kCount]) {
  constexpr int kStep = kPiece<T, kCount>;
#pragma unroll
  for (int i = 0; i < kCount; i += kStep) {
    const auto packet = *reinterpret_cast<const Packet<T, kStep>*>(from + i);
#pragma unroll
    for (int j = 0; j < kStep; ++j) to[i + j] = widen(packet.values[j]);
  }
}

template <int kCount, class T>
__device__ inline void store_packet(T* to, const float (&from)[kCount]) {
  constexpr int kStep = kPiece<T, kCount>;
#pragma unroll
  for (int i = 0; i < kCount; i += kStep) {
    Packet<T, kStep> packet;
#pragma unroll
    for (int j = 0; j < kStep; ++j) packet.values[j] = narrow_to<T>(from[i + j]);
    *reinterpret_cast<Packet<T, kStep>*>(to + i) = packet;
  }
}

// Calls body(T{}, std::integral_constant<int, n>{}) with the type of `element` and n of them per load and store: 16
// bytes where all pointers and `width`, what lies between the starts of rows, allow it, else one.
template <class Body>
cudaError_t with_packets(Element element, int64_t width, std::initializer_list<const void*> pointers, Body&& body) {
  const int64_t most = element == Element::kFloat ? 4 : 8;
  const bool fits = width % most == 0 && std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
                      return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
                    });
  if (element == Element::kFloat) {
    return fits ? body(float{}, std::integral_constant<int, 4>{}) : body(float{}, std::integral_constant<int, 1>{});
  }
  if (element == Element::kHalf)
    return fits ? body(__half{}, std::integral_constant<int, 8>{}) : body(__half{}, std::integral_constant<int, 1>{});
  return fits ? body(__nv_bfloat16{}, std::integral_constant<int, 8>{})
              : body(__nv_bfloat16{}, std::integral_constant<int, 1>{});
}

}  // namespace fsdp::kernels::cuda
