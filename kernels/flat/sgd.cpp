#include "kernels/flat/sgd.h"

#include <ATen/core/Tensor.h>

#include "kernels/flat/flat_kernels.h"
#include "kernels/raw/flat/sgd.h"
#include "kernels/raw/flat/steps_fp64.h"

namespace fsdp::kernels {

namespace {

template <class Number>
SGDFactorsOf<Number> factors_of(const SGDStep& step) {
  const bool first = step.state == MomentumState::kFirstStep;
  const auto momentum = static_cast<Number>(step.momentum);
  return {static_cast<Number>(step.lr),
          first ? Number{0} : momentum,
          first ? Number{1} : static_cast<Number>(1 - step.dampening),
          static_cast<Number>(step.weight_decay),
          momentum,
          static_cast<Number>(step.gradient_factor)};
}

template <class Number>
void step_on_cpu(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& buffer, const SGDStep& step) {
  auto factors = factors_of<Number>(step);
  if (step.gradient_scale.defined()) factors.gradient *= step.gradient_scale.item<Number>();
  Number* state = step.state == MomentumState::kNone ? nullptr : buffer.mutable_data_ptr<Number>();
  raw::sgd(weight.mutable_data_ptr<Number>(), gradient.const_data_ptr<Number>(), state, weight.numel(), factors,
           step.nesterov);
}

}  // namespace

SGDFactors make_factors(const SGDStep& step) { return factors_of<float>(step); }

void sgd_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& buffer, const at::Tensor& copy,
              const SGDStep& step) {
  if (!weight.is_cpu()) return need_flat_kernels("sgd_step", weight).sgd_step(weight, gradient, buffer, copy, step);
  if (weight.scalar_type() == at::kDouble) {
    step_on_cpu<double>(weight, gradient, buffer, step);
  } else {
    step_on_cpu<float>(weight, gradient, buffer, step);
  }
  if (copy.defined()) at::Tensor(copy).copy_(weight);
}

}  // namespace fsdp::kernels
