#include "fsdp/optim/sgd.h"

#include <memory>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/update_rule.h"
#include "kernels/flat/sgd.h"

namespace fsdp {
namespace {

void check_sgd_options(const SGDOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.momentum >= 0 && options.weight_decay >= 0, "[SGD] lr ", options.lr,
             ", momentum ", options.momentum, ", weight decay ", options.weight_decay, ": expected at least 0.");
  FSDP_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
             "[SGD] Nesterov's form: got momentum ", options.momentum, " and dampening ", options.dampening,
             ", expected momentum above 0 and no dampening.");
}

class SGDRule : public RuleOf<SGDOptions> {
 public:
  explicit SGDRule(std::vector<SGDGroup> groups) {
    LeafNeeds needs;
    for (const SGDGroup& group : groups) {
      if (group.options.momentum > 0) needs.states = {{"momentum_buffer"}};
    }
    for (SGDGroup& group : groups) {
      check_sgd_options(group.options);
      options.push_back(group.options);
      leaves_.push_back({std::move(group.parameters), needs});
    }
  }

  const char* name() const override { return "SGD"; }

  void update(const FlatRun& run, const GradientFactor& factor) override {
    const SGDOptions& group = options[run.options];
    auto momentum = kernels::MomentumState::kNone;
    if (group.momentum > 0) {
      FSDP_CHECK(!run.states.empty(), "[SGD] momentum was 0 when the optimizer was built. Give it there.");
      momentum = run.step == 1 ? kernels::MomentumState::kFirstStep : kernels::MomentumState::kRunning;
    }
    kernels::sgd_step(run.weight, run.gradient, run.states.empty() ? at::Tensor() : run.states[0], run.copy,
                      {group.lr, group.momentum, group.dampening, group.weight_decay, group.nesterov, momentum,
                       factor.number, factor.on_device_of(run.weight)});
  }
};

}  // namespace

SGD::SGD(std::vector<at::Tensor> parameters, SGDOptions options)
    : SGD(std::vector<SGDGroup>{{std::move(parameters), options}}) {}
SGD::SGD(std::vector<SGDGroup> groups) : FlatOptimizer(std::make_unique<SGDRule>(std::move(groups))) {}
SGD::SGD(std::vector<DecayGroup> groups, SGDOptions options) : SGD(with_decay<SGDGroup>(std::move(groups), options)) {}

SGDOptions& SGD::options(size_t group) { return static_cast<SGDRule&>(rule()).options.at(group); }

}  // namespace fsdp
