#include "kernels/flat/lion.h"

#include "kernels/flat/flat_kernels.h"
#include "kernels/flat/weight_copy.h"
#include "kernels/raw/flat/lion.h"
#include "kernels/raw/flat/steps_fp64.h"

namespace fsdp::kernels {
namespace {

template <class Number>
LionFactorsOf<Number> lion_factors(const LionStep& step) {
  return {static_cast<Number>(1 - step.lr * step.weight_decay),
          static_cast<Number>(step.lr),
          static_cast<Number>(step.beta1),
          static_cast<Number>(1 - step.beta1),
          static_cast<Number>(step.beta2),
          static_cast<Number>(1 - step.beta2),
          static_cast<Number>(step.gradient_factor)};
}

void lion_step_fp64(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& momentum,
                    const at::Tensor& copy, const LionStep& step) {
  auto factors = lion_factors<double>(step);
  if (step.gradient_scale.defined()) factors.gradient *= step.gradient_scale.item<double>();
  raw::lion(weight.mutable_data_ptr<double>(), gradient.const_data_ptr<double>(), momentum.mutable_data_ptr<double>(),
            weight.numel(), factors);
  if (copy.defined()) copy.copy_(weight);
}

}  // namespace

LionFactors make_factors(const LionStep& step) { return lion_factors<float>(step); }

void lion_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& momentum, const at::Tensor& copy,
               const LionStep& step) {
  if (!weight.is_cpu()) return need_flat_kernels("lion_step", weight).lion_step(weight, gradient, momentum, copy, step);
  if (weight.scalar_type() == at::kDouble) return lion_step_fp64(weight, gradient, momentum, copy, step);
  LionFactors factors = make_factors(step);
  if (step.gradient_scale.defined()) factors.gradient *= step.gradient_scale.item<float>();
  float *w = weight.mutable_data_ptr<float>(), *m = momentum.mutable_data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  update_and_copy(weight, copy,
                  [&](int64_t begin, int64_t count) { raw::lion(w + begin, g + begin, m + begin, count, factors); });
}

}  // namespace fsdp::kernels
