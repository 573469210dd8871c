// Rotary position embedding of rows. Single-threaded, allocates nothing.
#pragma once

#include <cstdint>

#include "kernels/raw/bf16.h"

namespace fsdp::kernels::raw {

// Positions one after the other, `from_stride` and `to_stride` elements apart; the `heads` of one, each of `dim`
// elements, lie side by side. cos and sin [positions, dim]. to may be from. T: float or Bf16.
template <class T>
struct RopePositions {
  const T* from;
  T* to;
  int64_t from_stride, to_stride;
  const T *cos, *sin;
  int64_t positions, heads, dim;
};

// Halves x1, x2 of a head: (x1 c1 - x2 s1, x2 c2 + x1 s2), each product rounded to T; inverse: the transpose of that
// map, which is what the backward needs.
void rope(const RopePositions<float>& x, bool inverse);
void rope(const RopePositions<Bf16>& x, bool inverse);

}  // namespace fsdp::kernels::raw
