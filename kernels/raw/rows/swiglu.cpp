#include "kernels/raw/rows/swiglu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/rows/swiglu.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

HWY_INLINE Float sigmoid(Float x) {
  const Float one = simd::broadcast(1.0f);
  return one / (one + simd::exp(simd::zero() - x));
}

template <class T>
HWY_INLINE void forward_of(const T* gate, const T* up, T* y, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Float g = simd::load(gate + i);
    simd::store_result(y + i, simd::round_to<T>(g * sigmoid(g)) * simd::load(up + i));
  }
  if (i == count) return;
  const int64_t rest = count - i;
  const Float g = simd::load_first(gate + i, rest);
  simd::store_first(y + i, simd::round_to<T>(g * sigmoid(g)) * simd::load_first(up + i, rest), rest);
}

// silu'(g) = s * (1 + g * (1 - s)) with s = sigmoid(g).
template <class T>
HWY_INLINE void gradients(Float grad_y, Float g, Float u, Float& grad_gate, Float& grad_up) {
  const Float s = sigmoid(g), one = simd::broadcast(1.0f);
  grad_gate = simd::round_to<T>(grad_y * u) * s * simd::mul_add(g, one - s, one);
  grad_up = grad_y * simd::round_to<T>(g * s);
}

template <class T>
HWY_INLINE void backward_of(const T* grad_y, const T* gate, const T* up, T* grad_gate, T* grad_up, int64_t count) {
  Float for_gate, for_up;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    gradients<T>(simd::load(grad_y + i), simd::load(gate + i), simd::load(up + i), for_gate, for_up);
    simd::store_result(grad_gate + i, for_gate);
    simd::store_result(grad_up + i, for_up);
  }
  if (i == count) return;
  const int64_t rest = count - i;
  gradients<T>(simd::load_first(grad_y + i, rest), simd::load_first(gate + i, rest), simd::load_first(up + i, rest),
               for_gate, for_up);
  simd::store_first(grad_gate + i, for_gate, rest);
  simd::store_first(grad_up + i, for_up, rest);
}

void forward_f32(const float* gate, const float* up, float* y, int64_t count) { forward_of(gate, up, y, count); }
void forward_bf16(const Bf16* gate, const Bf16* up, Bf16* y, int64_t count) { forward_of(gate, up, y, count); }
void backward_f32(const float* grad_y, const float* gate, const float* up, float* grad_gate, float* grad_up,
                  int64_t count) {
  backward_of(grad_y, gate, up, grad_gate, grad_up, count);
}
void backward_bf16(const Bf16* grad_y, const Bf16* gate, const Bf16* up, Bf16* grad_gate, Bf16* grad_up,
                   int64_t count) {
  backward_of(grad_y, gate, up, grad_gate, grad_up, count);
}

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_bf16);

void swiglu(const float* gate, const float* up, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(gate, up, y, count);
}
void swiglu(const Bf16* gate, const Bf16* up, Bf16* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(gate, up, y, count);
}
void swiglu_backward(const float* grad_y, const float* gate, const float* up, float* grad_gate, float* grad_up,
                     int64_t count) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(grad_y, gate, up, grad_gate, grad_up, count);
}
void swiglu_backward(const Bf16* grad_y, const Bf16* gate, const Bf16* up, Bf16* grad_gate, Bf16* grad_up,
                     int64_t count) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(grad_y, gate, up, grad_gate, grad_up, count);
}

}  // namespace fsdp::kernels::raw
#endif
