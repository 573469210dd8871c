#include "fsdp/optim/lion.h"

#include <ATen/ATen.h>

#include <memory>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/update_rule.h"

namespace fsdp {
namespace {

void check_lion_options(const LionOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.weight_decay >= 0, "[Lion] lr ", options.lr, ", weight decay ",
             options.weight_decay, ": expected at least 0.");
  FSDP_CHECK(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1, "[Lion] betas: got ",
             options.beta1, " and ", options.beta2, ", expected numbers from 0 to below 1.");
}

// The same operators for all devices and dtypes.
void lion_update(const FlatRun& run, const LionOptions& options, const GradientFactor& factor) {
  for_each_piece(run, run.weight.is_cpu() ? kHostPiece : run.weight.numel(), [&](const FlatRun& piece) {
    const at::Tensor gradient = factor.times(piece.gradient);
    const at::Tensor& momentum = piece.states[0];
    const at::Tensor direction = momentum.lerp(gradient, 1 - options.beta1).sign_();
    piece.weight.mul_(1 - options.lr * options.weight_decay).add_(direction, -options.lr);
    momentum.lerp_(gradient, 1 - options.beta2);
    if (piece.copy.defined()) piece.copy.copy_(piece.weight);
  });
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
    lion_update(run, options[run.options], factor);
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
