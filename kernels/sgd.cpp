#include "kernels/sgd.h"

#include <ATen/ATen.h>

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

FSDP_SIMD_CLONES void update_with_momentum(float* __restrict__ w, const float* __restrict__ g, float* __restrict__ buffer,
                                           int64_t n, Factors f, bool nesterov) {
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] + f.weight_decay * w[i];
    buffer[i] = f.momentum * buffer[i] + f.keep * gradient;
    w[i] -= f.lr * (nesterov ? gradient + f.look_ahead * buffer[i] : buffer[i]);
  }
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
  if (step.state == MomentumState::kNone) {
    update_plain(w, g, weight.numel(), factors);
  } else {
    update_with_momentum(w, g, buffer.mutable_data_ptr<float>(), weight.numel(), factors, step.nesterov);
  }
  if (copy.defined()) at::Tensor(copy).copy_(weight);
}

}  // namespace fsdp::kernels
