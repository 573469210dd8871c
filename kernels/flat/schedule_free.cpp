#include "kernels/flat/schedule_free.h"

#include <cmath>

#include "kernels/flat/flat_kernels.h"
#include "kernels/flat/weight_copy.h"
#include "kernels/raw/flat/schedule_free.h"
#include "kernels/raw/flat/steps_fp64.h"

namespace fsdp::kernels {
namespace {

template <class Number>
ScheduleFreeFactorsOf<Number> schedule_free_factors(const ScheduleFreeStep& step) {
  const double correction = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  return {static_cast<Number>(step.beta2),
          static_cast<Number>(1 - step.beta2),
          static_cast<Number>(1 / std::sqrt(correction)),
          static_cast<Number>(step.eps),
          static_cast<Number>(step.weight_decay),
          static_cast<Number>(step.share),
          static_cast<Number>(step.lr),
          static_cast<Number>(step.lr * (1 - step.beta1 * (1 - step.share))),
          static_cast<Number>(step.gradient_factor)};
}

void schedule_free_step_fp64(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& iterate,
                             const at::Tensor& squares, const at::Tensor& copy, const ScheduleFreeStep& step) {
  auto factors = schedule_free_factors<double>(step);
  if (step.gradient_scale.defined()) factors.gradient *= step.gradient_scale.item<double>();
  raw::schedule_free(weight.mutable_data_ptr<double>(), gradient.const_data_ptr<double>(),
                     iterate.mutable_data_ptr<double>(), squares.mutable_data_ptr<double>(), weight.numel(), factors,
                     step.step == 1);
  if (copy.defined()) copy.copy_(weight);
}

}  // namespace

ScheduleFreeFactors make_factors(const ScheduleFreeStep& step) { return schedule_free_factors<float>(step); }

void schedule_free_step(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& iterate,
                        const at::Tensor& squares, const at::Tensor& copy, const ScheduleFreeStep& step) {
  if (!weight.is_cpu()) {
    const FlatKernels& kernels = need_flat_kernels("schedule_free_step", weight);
    return kernels.schedule_free_step(weight, gradient, iterate, squares, copy, step);
  }
  if (weight.scalar_type() == at::kDouble) {
    return schedule_free_step_fp64(weight, gradient, iterate, squares, copy, step);
  }
  ScheduleFreeFactors factors = make_factors(step);
  if (step.gradient_scale.defined()) factors.gradient *= step.gradient_scale.item<float>();
  float *w = weight.mutable_data_ptr<float>(), *z = iterate.mutable_data_ptr<float>();
  float* v = squares.mutable_data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  update_and_copy(weight, copy, [&](int64_t begin, int64_t count) {
    raw::schedule_free(w + begin, g + begin, z + begin, v + begin, count, factors, step.step == 1);
  });
}

}  // namespace fsdp::kernels
