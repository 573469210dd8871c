#include "fsdp/optim/lion.h"

#include <memory>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/update_rule.h"
#include "kernels/flat/lion.h"

namespace fsdp {
namespace {

void check_lion_options(const LionOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.weight_decay >= 0, "[Lion] lr ", options.lr, ", weight decay ",
             options.weight_decay, ": expected at least 0.");
  FSDP_CHECK(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1, "[Lion] betas: got ",
             options.beta1, " and ", options.beta2, ", expected numbers from 0 to below 1.");
}

class LionRule : public RuleOf<LionOptions> {
 public:
  explicit LionRule(std::vector<LionGroup> groups) {
    for (LionGroup& group : groups) {
      check_lion_options(group.options);
      options.push_back(group.options);
      leaves_.push_back({std::move(group.parameters), {{{"exp_avg"}}}});
    }
  }

  const char* name() const override { return "Lion"; }
  void update(const FlatRun& run, const GradientFactor& factor) override {
    const LionOptions& group = options[run.options];
    kernels::lion_step(
        run.weight, run.gradient, run.states[0], run.copy,
        {group.lr, group.beta1, group.beta2, group.weight_decay, factor.number, factor.on_device_of(run.weight)});
  }
};

}  // namespace

Lion::Lion(std::vector<at::Tensor> parameters, LionOptions options)
    : Lion(std::vector<LionGroup>{{std::move(parameters), options}}) {}
Lion::Lion(std::vector<LionGroup> groups) : FlatOptimizer(std::make_unique<LionRule>(std::move(groups))) {}
Lion::Lion(std::vector<DecayGroup> groups, LionOptions options)
    : Lion(with_decay<LionGroup>(std::move(groups), options)) {}

LionOptions& Lion::options(size_t group) { return static_cast<LionRule&>(rule()).options.at(group); }

}  // namespace fsdp
