#include "fsdp/optim/adamw.h"

#include <memory>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/adamw_update.h"
#include "fsdp/optim/update_rule.h"
#include "kernels/flat/adamw.h"

namespace fsdp {

void check_options(const AdamWOptions& options) {
  FSDP_CHECK(options.lr >= 0, "[AdamW] lr: got ", options.lr, ", expected at least 0.");
  FSDP_CHECK(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1, "[AdamW] betas: got ",
             options.beta1, " and ", options.beta2, ", expected numbers from 0 to below 1.");
  FSDP_CHECK(options.eps >= 0 && options.weight_decay >= 0, "[AdamW] eps ", options.eps, " and weight decay ",
             options.weight_decay, ": expected at least 0.");
  for (const auto& dtype : {options.exp_avg_dtype, options.exp_avg_sq_dtype}) {
    FSDP_CHECK(!dtype || *dtype == at::kFloat || *dtype == at::kBFloat16, "[AdamW] dtype of a moment: got ", *dtype,
               ", expected fp32 or bf16.");
  }
}

LeafNeeds adamw_needs(const AdamWOptions& options) {
  return {{{"exp_avg", options.exp_avg_dtype}, {"exp_avg_sq", options.exp_avg_sq_dtype}}};
}

void adamw_update(const FlatRun& run, const AdamWOptions& options, const GradientFactor& factor) {
  kernels::adamw_step(run.weight, run.gradient, run.states[0], run.states[1], run.copy,
                      {options.lr, options.beta1, options.beta2, options.eps, options.weight_decay, run.step,
                       factor.number, factor.on_device_of(run.weight)});
}

namespace {

class AdamWRule : public RuleOf<AdamWOptions> {
 public:
  explicit AdamWRule(std::vector<AdamWGroup> groups) {
    for (AdamWGroup& group : groups) {
      check_options(group.options);
      const AdamWOptions& first = groups.front().options;
      FSDP_CHECK(group.options.exp_avg_dtype == first.exp_avg_dtype &&
                     group.options.exp_avg_sq_dtype == first.exp_avg_sq_dtype,
                 "[AdamW] exp_avg_dtype, exp_avg_sq_dtype: got groups that differ, expected the same in all.");
      options.push_back(group.options);
      leaves_.push_back({std::move(group.parameters), adamw_needs(group.options)});
    }
  }

  const char* name() const override { return "AdamW"; }
  void update(const FlatRun& run, const GradientFactor& factor) override {
    adamw_update(run, options[run.options], factor);
  }
};

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : AdamW(std::vector<AdamWGroup>{{std::move(parameters), options}}) {}
AdamW::AdamW(std::vector<AdamWGroup> groups) : FlatOptimizer(std::make_unique<AdamWRule>(std::move(groups))) {}
AdamW::AdamW(std::vector<DecayGroup> groups, AdamWOptions options)
    : AdamW(with_decay<AdamWGroup>(std::move(groups), options)) {}

AdamWOptions& AdamW::options(size_t group) { return static_cast<AdamWRule&>(rule()).options.at(group); }

}  // namespace fsdp
