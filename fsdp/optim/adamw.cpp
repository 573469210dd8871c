#include "fsdp/optim/adamw.h"

#include <algorithm>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/flat_parameters.h"
#include "fsdp/optim/gradient_factor.h"
#include "kernels/flat/adamw.h"

namespace fsdp {
namespace {

std::vector<std::vector<at::Tensor>> leaves_of(const std::vector<AdamWGroup>& groups) {
  std::vector<std::vector<at::Tensor>> leaves;
  for (const AdamWGroup& group : groups) leaves.push_back(group.parameters);
  return leaves;
}

std::vector<AdamWGroup> with_decay(std::vector<DecayGroup> groups, const AdamWOptions& options) {
  std::vector<AdamWGroup> result;
  for (DecayGroup& group : groups) {
    result.push_back({std::move(group.parameters), options});
    result.back().options.weight_decay = group.weight_decay;
  }
  return result;
}

void check_options(const AdamWOptions& options) {
  FSDP_CHECK(options.lr >= 0, "[AdamW] lr: got ", options.lr, ", expected at least 0.");
  FSDP_CHECK(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1, "[AdamW] betas: got ",
             options.beta1, " and ", options.beta2, ", expected numbers from 0 to below 1.");
  FSDP_CHECK(options.eps >= 0 && options.weight_decay >= 0, "[AdamW] eps ", options.eps, " and weight decay ",
             options.weight_decay, ": expected at least 0.");
}

StateDtypes moments_of(const std::vector<AdamWGroup>& groups) {
  const AdamWOptions first = groups.empty() ? AdamWOptions{} : groups.front().options;
  for (const AdamWGroup& group : groups) {
    FSDP_CHECK(
        group.options.exp_avg_dtype == first.exp_avg_dtype && group.options.exp_avg_sq_dtype == first.exp_avg_sq_dtype,
        "[AdamW] exp_avg_dtype, exp_avg_sq_dtype: got groups that differ, expected the same in all.");
  }
  for (const auto& dtype : {first.exp_avg_dtype, first.exp_avg_sq_dtype}) {
    FSDP_CHECK(!dtype || *dtype == at::kFloat || *dtype == at::kBFloat16, "[AdamW] dtype of a moment: got ", *dtype,
               ", expected fp32 or bf16.");
  }
  return {first.exp_avg_dtype, first.exp_avg_sq_dtype};
}

}  // namespace

struct AdamW::State {
  explicit State(const std::vector<AdamWGroup>& groups) : parameters(leaves_of(groups), moments_of(groups)) {
    for (const AdamWGroup& group : groups) {
      check_options(group.options);
      options.push_back(group.options);
    }
  }

  FlatParameters::Update update(const GradientFactor& factor = {}) {
    return [this, factor](const FlatRun& run) {
      const AdamWOptions& group = options[run.options];
      kernels::adamw_step(run.weight, run.gradient, run.states[0], run.states[1], run.copy,
                          {group.lr, group.beta1, group.beta2, group.eps, group.weight_decay, run.step, factor.number,
                           factor.on_device_of(run.weight)});
    };
  }

  FlatParameters parameters;
  std::vector<AdamWOptions> options;
  int64_t num_steps = 0;
};

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : AdamW(std::vector<AdamWGroup>{{std::move(parameters), options}}) {}
AdamW::AdamW(std::vector<AdamWGroup> groups) : state_(std::make_unique<State>(groups)) {}
AdamW::AdamW(std::vector<DecayGroup> groups, AdamWOptions options) : AdamW(with_decay(std::move(groups), options)) {}
AdamW::~AdamW() = default;
AdamW::AdamW(AdamW&&) noexcept = default;
AdamW& AdamW::operator=(AdamW&&) noexcept = default;

void AdamW::step(double gradient_factor) {
  ++state_->num_steps;
  state_->parameters.for_each_run(state_->update({gradient_factor, {}}));
}

void AdamW::step(const at::Tensor& gradient_factor) {
  const GradientFactor factor = GradientFactor::of(gradient_factor, "AdamW");
  ++state_->num_steps;
  state_->parameters.for_each_run(state_->update(factor));
}

void AdamW::step_in_backward() { state_->parameters.update_in_backward(state_->update()); }

void AdamW::set_lr(double lr) {
  for (AdamWOptions& options : state_->options) options.lr = lr;
}

AdamWOptions& AdamW::options(size_t group) { return state_->options.at(group); }
size_t AdamW::num_groups() const { return state_->options.size(); }
int64_t AdamW::num_steps() const { return state_->num_steps; }
int64_t AdamW::state_bytes() const { return state_->parameters.state_bytes(); }
FlatParameters& AdamW::flat_parameters() { return state_->parameters; }
void AdamW::set_num_steps(int64_t steps) { state_->num_steps = steps; }

}  // namespace fsdp
