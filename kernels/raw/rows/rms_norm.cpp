#include "kernels/raw/rows/rms_norm.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/raw/rows/rms_norm.cpp"
#include <hwy/foreach_target.h>

#include "kernels/raw/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsdp::kernels::raw::HWY_NAMESPACE {
namespace {

using simd::Float;

template <class T>
HWY_INLINE void add_row(const T* a, const T* b, T* sum, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) simd::store_result(sum + i, simd::load(a + i) + simd::load(b + i));
  for (; i < width; ++i) sum[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
}

template <class T>
HWY_INLINE float mean_square(const T* x, int64_t width) {
  Float squares = simd::zero(), more = simd::zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    const Float a = simd::load(x + i), b = simd::load(x + i + kLanes);
    squares = simd::mul_add(a, a, squares);
    more = simd::mul_add(b, b, more);
  }
  squares = squares + more;
  for (; i < width; i += kLanes) {
    const Float a = i + kLanes <= width ? simd::load(x + i) : simd::load_first(x + i, width - i);
    squares = simd::mul_add(a, a, squares);
  }
  return simd::sum(squares) / static_cast<float>(width);
}

template <class T>
HWY_INLINE void forward_row(const T* x, const T* weight, T* y, int64_t width, float scale) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    simd::store_result(y + i, simd::round_to<T>(simd::load(x + i) * scale) * simd::load(weight + i));
  if (i == width) return;
  const int64_t rest = width - i;
  simd::store_first(
      y + i, simd::round_to<T>(simd::load_first(x + i, rest) * scale) * simd::load_first(weight + i, rest), rest);
}

template <class T>
HWY_INLINE void forward_of(const RmsNormForward<T>& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    const T* x = a.x + row * a.width;
    if (a.residual) {
      add_row(x, a.residual + row * a.width, a.sum + row * a.width, a.width);
      x = a.sum + row * a.width;
    }
    const float scale = 1.0f / std::sqrt(mean_square(x, a.width) + a.eps);
    a.rstd[row] = scale;
    forward_row(x, a.weight, a.y + row * a.width, a.width, scale);
  }
}

// dx = rstd * (g - n * mean(g * n)) with g = dy * weight and n = x * rstd; adds dy * n to grad_weight.
template <class T>
HWY_INLINE void backward_row(const T* grad_y, const T* x, const T* weight, float scale, T* grad_x, float* grad_weight,
                             int64_t width) {
  const int64_t whole = width - width % kLanes, rest = width - whole;
  Float dot = simd::zero();
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Float gy = simd::load(grad_y + i), n = simd::load(x + i) * scale;
    dot = simd::mul_add(gy * simd::load(weight + i), n, dot);
    simd::store(grad_weight + i, simd::mul_add(gy, simd::round_to<T>(n), simd::load(grad_weight + i)));
  }
  const Float gy_tail = simd::load_first(grad_y + whole, rest), n_tail = simd::load_first(x + whole, rest) * scale;
  const Float g_tail = gy_tail * simd::load_first(weight + whole, rest);
  const Float mean = simd::broadcast(simd::sum(simd::mul_add(g_tail, n_tail, dot)) / static_cast<float>(width));
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Float g = simd::load(grad_y + i) * simd::load(weight + i), n = simd::load(x + i) * scale;
    simd::store_result(grad_x + i, simd::neg_mul_add(n, mean, g) * scale);
  }
  if (rest == 0) return;
  const Float total = simd::mul_add(gy_tail, simd::round_to<T>(n_tail), simd::load_first(grad_weight + whole, rest));
  simd::store_first(grad_weight + whole, total, rest);
  simd::store_first(grad_x + whole, simd::neg_mul_add(n_tail, mean, g_tail) * scale, rest);
}

template <class T>
HWY_INLINE void backward_of(const RmsNormBackward<T>& a) {
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t offset = row * a.width;
    backward_row(a.grad_y + offset, a.x + offset, a.weight, a.rstd[row], a.grad_x + offset, a.grad_weight, a.width);
    if (a.grad_sum) add_row(a.grad_x + offset, a.grad_sum + offset, a.grad_x + offset, a.width);
  }
}

void forward_f32(const RmsNormForward<float>& rows) { forward_of(rows); }
void forward_bf16(const RmsNormForward<Bf16>& rows) { forward_of(rows); }
void backward_f32(const RmsNormBackward<float>& rows) { backward_of(rows); }
void backward_bf16(const RmsNormBackward<Bf16>& rows) { backward_of(rows); }

}  // namespace
}  // namespace fsdp::kernels::raw::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsdp::kernels::raw {

HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_bf16);

void rms_norm(const RmsNormForward<float>& rows) { HWY_DYNAMIC_DISPATCH(forward_f32)(rows); }
void rms_norm(const RmsNormForward<Bf16>& rows) { HWY_DYNAMIC_DISPATCH(forward_bf16)(rows); }
void rms_norm_backward(const RmsNormBackward<float>& rows) { HWY_DYNAMIC_DISPATCH(backward_f32)(rows); }
void rms_norm_backward(const RmsNormBackward<Bf16>& rows) { HWY_DYNAMIC_DISPATCH(backward_bf16)(rows); }

}  // namespace fsdp::kernels::raw
#endif
