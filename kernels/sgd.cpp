#include "kernels/sgd.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "kernels/simd.h"

namespace fsdp::kernels {
namespace {

struct Factors {
  float lr;
  float momentum;
  float keep;  // what a gradient adds to the buffer
  float weight_decay;
  float look_ahead;  // momentum for Nesterov's form
};

FSDP_SIMD_CLONES void update_plain(float* __restrict__ w, const float* __restrict__ g, int64_t n, Factors f) {
  for (int64_t i = 0; i < n; ++i) w[i] -= f.lr * (g[i] + f.weight_decay * w[i]);
}

FSDP_SIMD_CLONES void update_with_momentum(float* __restrict__ w, const float* __restrict__ g,
                                           float* __restrict__ buffer, int64_t n, Factors f, bool nesterov) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] + f.weight_decay * w[i];
    buffer[i] = f.momentum * buffer[i] + f.keep * gradient;
    w[i] -= f.lr * (nesterov ? gradient + f.look_ahead * buffer[i] : buffer[i]);
  }
}

void update(float* w, const float* g, float* buffer, int64_t n, const Factors& factors, bool nesterov) {
  if (buffer == nullptr) {
    update_plain(w, g, n, factors);
  } else {
    update_with_momentum(w, g, buffer, n, factors, nesterov);
  }
}

// See adamw.cpp: an element's result must not depend on where a shard boundary lies.
void update_tail(float* w, const float* g, float* buffer, int64_t n, const Factors& factors, bool nesterov) {
  constexpr auto kSize = static_cast<size_t>(simd::kLanes);
  std::array<float, kSize> padded_w{}, padded_g{}, padded_buffer{};
  std::copy_n(w, n, padded_w.data());
  std::copy_n(g, n, padded_g.data());
  if (buffer != nullptr) std::copy_n(buffer, n, padded_buffer.data());
  update(padded_w.data(), padded_g.data(), buffer != nullptr ? padded_buffer.data() : nullptr, simd::kLanes, factors,
         nesterov);
  std::copy_n(padded_w.data(), n, w);
  if (buffer != nullptr) std::copy_n(padded_buffer.data(), n, buffer);
}

}  // namespace

void sgd_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& buffer, const at::Tensor& copy,
              const SGDStep& step) {
  const bool first = step.state == MomentumState::kFirstStep;
  const auto momentum = static_cast<float>(step.momentum);
  const Factors factors{static_cast<float>(step.lr), first ? 0.0F : momentum,
                        first ? 1.0F : static_cast<float>(1 - step.dampening), static_cast<float>(step.weight_decay),
                        momentum};
  float* w = weight.mutable_data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  float* state = step.state == MomentumState::kNone ? nullptr : buffer.mutable_data_ptr<float>();
  const int64_t whole = weight.numel() - weight.numel() % simd::kLanes;
  update(w, g, state, whole, factors, step.nesterov);
  update_tail(w + whole, g + whole, state == nullptr ? nullptr : state + whole, weight.numel() - whole, factors,
              step.nesterov);
  if (copy.defined()) at::Tensor(copy).copy_(weight);
}

}  // namespace fsdp::kernels
