#include "fsdp/optim/sgd.h"

#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/flat_parameters.h"
#include "fsdp/optim/gradient_factor.h"
#include "kernels/flat/sgd.h"

namespace fsdp {
namespace {

std::vector<std::vector<at::Tensor>> leaves_of(const std::vector<SGDGroup>& groups) {
  std::vector<std::vector<at::Tensor>> leaves;
  for (const SGDGroup& group : groups) leaves.push_back(group.parameters);
  return leaves;
}

std::vector<SGDGroup> with_decay(std::vector<DecayGroup> groups, const SGDOptions& options) {
  std::vector<SGDGroup> result;
  for (DecayGroup& group : groups) {
    result.push_back({std::move(group.parameters), options});
    result.back().options.weight_decay = group.weight_decay;
  }
  return result;
}

void check_options(const SGDOptions& options) {
  FSDP_CHECK(options.lr >= 0 && options.momentum >= 0 && options.weight_decay >= 0, "[SGD] lr ", options.lr,
             ", momentum ", options.momentum, ", weight decay ", options.weight_decay, ": expected at least 0.");
  FSDP_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
             "[SGD] Nesterov's form: got momentum ", options.momentum, " and dampening ", options.dampening,
             ", expected momentum above 0 and no dampening.");
}

}  // namespace

struct SGD::State {
  State(const std::vector<SGDGroup>& groups, size_t num_states)
      : parameters(leaves_of(groups), StateDtypes(num_states)) {
    for (const SGDGroup& group : groups) {
      check_options(group.options);
      options.push_back(group.options);
    }
  }

  FlatParameters::Update update(const GradientFactor& factor = {}) {
    return [this, factor](const FlatRun& run) {
      const SGDOptions& group = options[run.options];
      auto momentum = kernels::MomentumState::kNone;
      if (group.momentum > 0) {
        FSDP_CHECK(!run.states.empty(), "[SGD] momentum was 0 when the optimizer was built. Give it there.");
        momentum = run.step == 1 ? kernels::MomentumState::kFirstStep : kernels::MomentumState::kRunning;
      }
      kernels::sgd_step(run.weight, run.gradient, run.states.empty() ? at::Tensor() : run.states[0], run.copy,
                        {group.lr, group.momentum, group.dampening, group.weight_decay, group.nesterov, momentum,
                         factor.number, factor.on_device_of(run.weight)});
    };
  }

  FlatParameters parameters;
  std::vector<SGDOptions> options;
};

SGD::SGD(std::vector<at::Tensor> parameters, SGDOptions options)
    : SGD(std::vector<SGDGroup>{{std::move(parameters), options}}) {}
SGD::SGD(std::vector<SGDGroup> groups) {
  size_t num_states = 0;
  for (const SGDGroup& group : groups) num_states = group.options.momentum > 0 ? 1 : num_states;
  state_ = std::make_unique<State>(groups, num_states);
}
SGD::SGD(std::vector<DecayGroup> groups, SGDOptions options) : SGD(with_decay(std::move(groups), options)) {}
SGD::~SGD() = default;
SGD::SGD(SGD&&) noexcept = default;
SGD& SGD::operator=(SGD&&) noexcept = default;

void SGD::step(double gradient_factor) { state_->parameters.for_each_run(state_->update({gradient_factor, {}})); }

void SGD::step(const at::Tensor& gradient_factor) {
  state_->parameters.for_each_run(state_->update(GradientFactor::of(gradient_factor, "SGD")));
}

void SGD::step_in_backward() { state_->parameters.update_in_backward(state_->update()); }

void SGD::set_lr(double lr) {
  for (SGDOptions& options : state_->options) options.lr = lr;
}

SGDOptions& SGD::options(size_t group) { return state_->options.at(group); }
size_t SGD::num_groups() const { return state_->options.size(); }
int64_t SGD::state_bytes() const { return state_->parameters.state_bytes(); }
FlatParameters& SGD::flat_parameters() { return state_->parameters; }

}  // namespace fsdp
