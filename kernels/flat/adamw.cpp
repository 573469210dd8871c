#include "kernels/flat/adamw.h"

#include <ATen/core/Tensor.h>

#include <cmath>

#include "kernels/flat/flat_kernels.h"
#include "kernels/flat/weight_copy.h"
#include "kernels/raw/flat/adamw.h"
#include "kernels/raw/flat/steps_fp64.h"

namespace fsdp::kernels {

namespace {

template <class Number>
AdamWFactorsOf<Number> factors_of(const AdamWStep& step) {
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  return {static_cast<Number>(1 - step.lr * step.weight_decay),
          static_cast<Number>(step.beta1),
          static_cast<Number>(1 - step.beta1),
          static_cast<Number>(step.beta2),
          static_cast<Number>(1 - step.beta2),
          static_cast<Number>(step.lr / correction1),
          static_cast<Number>(1 / std::sqrt(correction2)),
          static_cast<Number>(step.eps),
          static_cast<Number>(step.gradient_factor)};
}

void adamw_step_fp64(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
                     const at::Tensor& copy, const AdamWStep& step) {
  auto factors = factors_of<double>(step);
  if (step.gradient_scale.defined()) factors.gradient *= step.gradient_scale.item<double>();
  raw::adamw(weight.mutable_data_ptr<double>(), gradient.const_data_ptr<double>(), m.mutable_data_ptr<double>(),
             v.mutable_data_ptr<double>(), weight.numel(), factors);
  if (copy.defined()) at::Tensor(copy).copy_(weight);
}

}  // namespace

bool writes_copies_of(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

AdamWFactors make_factors(const AdamWStep& step) { return factors_of<float>(step); }

void adamw_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& m, const at::Tensor& v,
                const at::Tensor& copy, const AdamWStep& step) {
  if (!weight.is_cpu()) {
    return need_flat_kernels("adamw_step", weight).adamw_step(weight, gradient, m, v, copy, step);
  }
  if (weight.scalar_type() == at::kDouble) return adamw_step_fp64(weight, gradient, m, v, copy, step);
  AdamWFactors factors = make_factors(step);
  if (step.gradient_scale.defined()) factors.gradient *= step.gradient_scale.item<float>();
  float* w = weight.mutable_data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  float* first = m.mutable_data_ptr<float>();
  float* second = v.mutable_data_ptr<float>();
  update_and_copy(weight, copy, [&](int64_t begin, int64_t count) {
    raw::adamw(w + begin, g + begin, first + begin, second + begin, count, factors);
  });
}

}  // namespace fsdp::kernels
