#include "kernels/sgd.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "kernels/flat_kernels.h"
#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

FSDP_SIMD_CLONES void update_plain(float* __restrict__ w, const float* __restrict__ g, int64_t n, SGDFactors f) {
  for (int64_t i = 0; i < n; ++i) w[i] -= f.lr * (g[i] + f.weight_decay * w[i]);
}

FSDP_SIMD_CLONES void update_with_momentum(float* __restrict__ w, const float* __restrict__ g,
                                           float* __restrict__ buffer, int64_t n, SGDFactors f, bool nesterov) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] + f.weight_decay * w[i];
    buffer[i] = f.momentum * buffer[i] + f.keep * gradient;
    w[i] -= f.lr * (nesterov ? gradient + f.look_ahead * buffer[i] : buffer[i]);
  }
}

void update_whole(float* w, const float* g, float* buffer, int64_t n, const SGDFactors& factors, bool nesterov) {
  if (buffer == nullptr) {
    update_plain(w, g, n, factors);
  } else {
    update_with_momentum(w, g, buffer, n, factors, nesterov);
  }
}

// See adamw.cpp: an element's result must not depend on where a shard boundary lies.
void update_tail(float* w, const float* g, float* buffer, int64_t n, const SGDFactors& factors, bool nesterov) {
  constexpr auto kSize = static_cast<size_t>(simd::kLanes);
  std::array<float, kSize> padded_w{}, padded_g{}, padded_buffer{};
  std::copy_n(w, n, padded_w.data());
  std::copy_n(g, n, padded_g.data());
  if (buffer != nullptr) std::copy_n(buffer, n, padded_buffer.data());
  update_whole(padded_w.data(), padded_g.data(), buffer != nullptr ? padded_buffer.data() : nullptr, simd::kLanes,
               factors, nesterov);
  std::copy_n(padded_w.data(), n, w);
  if (buffer != nullptr) std::copy_n(padded_buffer.data(), n, buffer);
}

void update(float* w, const float* g, float* buffer, int64_t n, const SGDFactors& factors, bool nesterov) {
  const int64_t whole = n - n % simd::kLanes;
  update_whole(w, g, buffer, whole, factors, nesterov);
  update_tail(w + whole, g + whole, buffer == nullptr ? nullptr : buffer + whole, n - whole, factors, nesterov);
}

FSDP_SIMD_CLONES void scale(float* __restrict__ out, const float* __restrict__ in, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i] * factor;
}

// The products are rounded on their own, as if the gradients had been scaled before.
void update_scaled(float* w, const float* g, float* buffer, int64_t n, const SGDFactors& factors, bool nesterov) {
  constexpr int64_t kBlock = 4096;  // a whole number of vectors
  alignas(64) std::array<float, kBlock> scaled;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    scale(scaled.data(), g + begin, factors.gradient, count);
    update(w + begin, scaled.data(), buffer == nullptr ? nullptr : buffer + begin, count, factors, nesterov);
  }
}

}  // namespace

SGDFactors make_factors(const SGDStep& step) {
  const bool first = step.state == MomentumState::kFirstStep;
  const auto momentum = static_cast<float>(step.momentum);
  return {static_cast<float>(step.lr),
          first ? 0.0F : momentum,
          first ? 1.0F : static_cast<float>(1 - step.dampening),
          static_cast<float>(step.weight_decay),
          momentum,
          static_cast<float>(step.gradient_factor)};
}

void sgd_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& buffer, const at::Tensor& copy,
              const SGDStep& step) {
  if (!weight.is_cpu()) return need_flat_kernels("sgd_step", weight).sgd_step(weight, gradient, buffer, copy, step);
  SGDFactors factors = make_factors(step);
  if (step.gradient_scale.defined()) factors.gradient *= step.gradient_scale.item<float>();
  float* state = step.state == MomentumState::kNone ? nullptr : buffer.mutable_data_ptr<float>();
  (factors.gradient == 1.0F ? update : update_scaled)(weight.mutable_data_ptr<float>(),
                                                      gradient.const_data_ptr<float>(), state, weight.numel(), factors,
                                                      step.nesterov);
  if (copy.defined()) at::Tensor(copy).copy_(weight);
}

}  // namespace fsdp::kernels
