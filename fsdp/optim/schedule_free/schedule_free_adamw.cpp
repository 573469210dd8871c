#include "fsdp/optim/schedule_free/schedule_free_adamw.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/group/leaves.h"
#include "fsdp/optim/update_rule.h"
#include "kernels/flat/schedule_free.h"

namespace fsdp {
namespace {

void check_schedule_free_options(const ScheduleFreeAdamWOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.weight_decay >= 0 && options.eps >= 0 && options.warmup_steps >= 0,
             "[ScheduleFreeAdamW] lr ", options.lr, ", weight decay ", options.weight_decay, ", eps ", options.eps,
             ", warmup steps ", options.warmup_steps, ": expected at least 0.");
  FSDP_CHECK(options.beta1 > 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
             "[ScheduleFreeAdamW] betas: got ", options.beta1, " and ", options.beta2,
             ", expected beta1 between 0 and 1, beta2 from 0 to below 1.");
}

// How much step t (from 1) counts in the average of the first t, each with the square of its learning rate.
double share_of_step(int64_t step, int64_t warmup_steps) {
  const auto t = static_cast<double>(step), warmup = static_cast<double>(warmup_steps);
  const double n = std::min(t, warmup);
  const double of_warmup = n > 0 ? n * (n + 1) * (2 * n + 1) / (6 * warmup * warmup) : 0;
  const double weight = t < warmup ? t * t / (warmup * warmup) : 1;
  return weight / (of_warmup + std::max(0.0, t - warmup));
}

// weight is y, between the iterate z and the average x: y = (1 - beta1) z + beta1 x.
void schedule_free_update(const FlatRun& run, const ScheduleFreeAdamWOptions& options, const GradientFactor& factor) {
  const auto t = static_cast<double>(run.step);
  const double lr =
      options.warmup_steps > 0 ? options.lr * std::min(1.0, t / static_cast<double>(options.warmup_steps)) : options.lr;
  kernels::schedule_free_step(
      run.weight, run.gradient, run.states[0], run.states[1], run.copy,
      {lr, options.beta1, options.beta2, options.eps, options.weight_decay,
       share_of_step(run.step, options.warmup_steps), run.step, factor.number, factor.on_device_of(run.weight)});
}

class ScheduleFreeRule : public RuleOf<ScheduleFreeAdamWOptions> {
 public:
  explicit ScheduleFreeRule(std::vector<ScheduleFreeAdamWGroup> groups) {
    for (ScheduleFreeAdamWGroup& group : groups) {
      check_schedule_free_options(group.options);
      options.push_back(group.options);
      leaves_.push_back({std::move(group.parameters), {{{"iterate"}, {"exp_avg_sq"}}}});
    }
  }

  const char* name() const override { return "ScheduleFreeAdamW"; }
  void check_trains(const char* caller) const override {
    FSDP_CHECK(!has_average, "[ScheduleFreeAdamW] ", caller,
               ": got a model with its average, expected the weights that gradients are taken at. Call use_iterates() "
               "before it, and before the forward.");
  }
  void update(const FlatRun& run, const GradientFactor& factor) override {
    check_trains("step");  // in the backward nobody asked before
    schedule_free_update(run, options[run.options], factor);
  }

  bool has_average = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;  // leaves, and their weights before they had the average
};

// x = y - (1 / beta1 - 1) (z - y). Seen by the observer, as the program's own writes are.
void take_average(ScheduleFreeRule& rule, FlatParameters& flat) {
  for (size_t group = 0; group < rule.options.size(); ++group) {
    for (const at::Tensor& leaf : rule.leaf_groups()[group].leaves) {
      if (!leaf.requires_grad() || flat.steps_of(leaf) == 0) continue;
      rule.kept.emplace_back(leaf, leaf.detach().clone());
      leaf.detach().lerp_(flat.states_of(leaf).front().tensor, 1 - 1 / rule.options[group].beta1);
    }
  }
}

}  // namespace

ScheduleFreeAdamW::ScheduleFreeAdamW(std::vector<at::Tensor> parameters, ScheduleFreeAdamWOptions options)
    : ScheduleFreeAdamW(std::vector<ScheduleFreeAdamWGroup>{{std::move(parameters), options}}) {}
ScheduleFreeAdamW::ScheduleFreeAdamW(std::vector<ScheduleFreeAdamWGroup> groups)
    : FlatOptimizer(std::make_unique<ScheduleFreeRule>(std::move(groups))) {}
ScheduleFreeAdamW::ScheduleFreeAdamW(std::vector<DecayGroup> groups, ScheduleFreeAdamWOptions options)
    : ScheduleFreeAdamW(with_decay<ScheduleFreeAdamWGroup>(std::move(groups), options)) {}

ScheduleFreeAdamWOptions& ScheduleFreeAdamW::options(size_t group) {
  return static_cast<ScheduleFreeRule&>(rule()).options.at(group);
}

void ScheduleFreeAdamW::use_average() {
  auto& own = static_cast<ScheduleFreeRule&>(rule());
  if (own.has_average) return;
  enter_library(flat_parameters().leaves());  // which may throw what a backward left
  own.has_average = true;
  const at::NoGradGuard no_grad;
  take_average(own, flat_parameters());
}

void ScheduleFreeAdamW::use_iterates() {
  auto& own = static_cast<ScheduleFreeRule&>(rule());
  if (!own.has_average) return;
  enter_library(flat_parameters().leaves());
  own.has_average = false;
  const at::NoGradGuard no_grad;
  for (const auto& [leaf, weight] : std::exchange(own.kept, {})) leaf.detach().copy_(weight);
}

}  // namespace fsdp
