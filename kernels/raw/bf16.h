// Numbers of the raw kernels, which know no LibTorch.
#pragma once

#include <bit>
#include <cstdint>

namespace fsdp::kernels::raw {

// bfloat16, with the layout of c10::BFloat16: the upper half of an fp32.
struct Bf16 {
  uint16_t bits;
};

// Two neighbours along the dimension that is summed over, the first in the lower half.
using Bf16Pair = uint32_t;

// Lanes that vectors of kernels have, however many registers that takes.
inline constexpr int64_t kLanes = 16;

// The next multiple of kLanes.
constexpr int64_t whole_lanes(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

inline float to_float(float value) { return value; }
inline float to_float(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

// Rounded to the nearest, ties to even; NaN stays NaN.
template <class T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline Bf16 from_float<Bf16>(float value) {
  if (value != value) return {0x7FC0};
  const auto bits = std::bit_cast<uint32_t>(value);
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace fsdp::kernels::raw
