#include "fsdp/optim/flat_optimizer.h"

#include <utility>

#include "fsdp/optim/flat_parameters.h"
#include "fsdp/optim/gradient_factor.h"
#include "fsdp/optim/update_rule.h"

namespace fsdp {

// Behind a pointer that stays where it is when the optimizer moves: updates in the backward point to it.
struct FlatOptimizer::State {
  explicit State(std::unique_ptr<UpdateRule> given)
      : rule(std::move(given)), parameters(rule->name(), rule->leaf_groups()) {}

  FlatParameters::Update update(const GradientFactor& factor = {}) {
    return [this, factor](const FlatRun& run) { rule->update(run, factor); };
  }

  std::unique_ptr<UpdateRule> rule;
  FlatParameters parameters;
  int64_t num_steps = 0;
};

FlatOptimizer::FlatOptimizer(std::unique_ptr<UpdateRule> rule) : state_(std::make_unique<State>(std::move(rule))) {}
FlatOptimizer::~FlatOptimizer() = default;
FlatOptimizer::FlatOptimizer(FlatOptimizer&&) noexcept = default;
FlatOptimizer& FlatOptimizer::operator=(FlatOptimizer&&) noexcept = default;

void FlatOptimizer::step(double gradient_factor) {
  check_trains("step");
  ++state_->num_steps;
  state_->parameters.for_each_run(state_->update({gradient_factor, {}}));
}

void FlatOptimizer::step(const at::Tensor& gradient_factor) {
  const GradientFactor factor = GradientFactor::of(gradient_factor, rule().name());
  check_trains("step");
  ++state_->num_steps;
  state_->parameters.for_each_run(state_->update(factor));
}

void FlatOptimizer::step_in_backward() { state_->parameters.update_in_backward(state_->update()); }

void FlatOptimizer::set_lr(double lr) {
  for (size_t group = 0; group < num_groups(); ++group) set_lr(group, lr);
}

void FlatOptimizer::set_lr(size_t group, double lr) { rule().lr(group) = lr; }
double FlatOptimizer::lr(size_t group) const { return rule().lr(group); }
size_t FlatOptimizer::num_groups() const { return rule().num_groups(); }
int64_t FlatOptimizer::num_steps() const { return state_->num_steps; }
int64_t FlatOptimizer::state_bytes() const { return state_->parameters.state_bytes(); }
FlatParameters& FlatOptimizer::flat_parameters() { return state_->parameters; }
void FlatOptimizer::set_num_steps(int64_t steps) { state_->num_steps = steps; }
void FlatOptimizer::check_trains(const char* caller) const { rule().check_trains(caller); }
UpdateRule& FlatOptimizer::rule() const { return *state_->rule; }

}  // namespace fsdp
