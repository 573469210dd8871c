#include "kernels/flat/sgd.h"

#include <ATen/core/Tensor.h>

#include "kernels/flat/flat_kernels.h"
#include "kernels/raw/flat/sgd.h"

namespace fsdp::kernels {

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
  raw::sgd(weight.mutable_data_ptr<float>(), gradient.const_data_ptr<float>(), state, weight.numel(), factors,
           step.nesterov);
  if (copy.defined()) at::Tensor(copy).copy_(weight);
}

}  // namespace fsdp::kernels
