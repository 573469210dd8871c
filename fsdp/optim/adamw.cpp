#include "fsdp/optim/adamw.h"

#include <algorithm>
#include <initializer_list>
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
  const auto is_one_of = [](const std::optional<at::ScalarType>& dtype, std::initializer_list<at::ScalarType> legal) {
    return !dtype || std::find(legal.begin(), legal.end(), *dtype) != legal.end();
  };
  FSDP_CHECK(is_one_of(options.exp_avg_dtype, {at::kFloat, at::kBFloat16, at::kHalf}), "[AdamW] exp_avg_dtype: got ",
             *options.exp_avg_dtype, ", expected fp32, bf16 or fp16.");
  FSDP_CHECK(
      is_one_of(options.exp_avg_sq_dtype, {at::kFloat, at::kBFloat16}), "[AdamW] exp_avg_sq_dtype: got ",
      *options.exp_avg_sq_dtype,
      ", expected fp32 or bf16: in fp16 the squares of gradients below 0.0002 are 0. For 8 bits see LowBitAdamW.");
}

LeafNeeds adamw_needs(const AdamWOptions& options) {
  FSDP_CHECK(
      options.digits == WeightDigits::kRounded || options.digits == WeightDigits::kCompensated,
      "[AdamW] digits: got eight bits of them, expected WeightDigits::kRounded or kCompensated. Take LowBitAdamW "
      "for eight.");
  LeafNeeds needs{{{"exp_avg", options.exp_avg_dtype}, {"exp_avg_sq", options.exp_avg_sq_dtype}}};
  if (options.digits == WeightDigits::kCompensated) {
    needs.states.push_back({"compensation"});
    needs.weights = WeightTypes::k16Bit;
  }
  return needs;
}

namespace {

// What was rounded away comes back first; what is rounded away now is kept.
void compensated_update(const FlatRun& run, const AdamWOptions& options, const GradientFactor& factor) {
  AdamWOptions plain = options;
  plain.digits = WeightDigits::kRounded;
  const at::ScalarType dtype = run.weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto wide = [&](const at::Tensor& tensor) { return tensor.to(dtype, /*non_blocking=*/false, /*copy=*/true); };
  for_each_piece(run, kHostPiece, [&](const FlatRun& kept) {
    FlatRun piece = kept;
    const at::Tensor& compensation = kept.states[2];
    piece.weight = wide(kept.weight).add_(compensation);
    piece.gradient = wide(kept.gradient);
    piece.states = {wide(kept.states[0]), wide(kept.states[1])};
    piece.copy = at::Tensor();
    adamw_update(piece, plain, factor);
    kept.weight.copy_(piece.weight);
    compensation.copy_(piece.weight.sub_(kept.weight));
    for (size_t i = 0; i < piece.states.size(); ++i) kept.states[i].copy_(piece.states[i]);
    if (kept.copy.defined()) kept.copy.copy_(kept.weight);
  });
}

}  // namespace

void adamw_update(const FlatRun& run, const AdamWOptions& options, const GradientFactor& factor) {
  if (options.digits == WeightDigits::kCompensated) return compensated_update(run, options, factor);
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
                     group.options.exp_avg_sq_dtype == first.exp_avg_sq_dtype && group.options.digits == first.digits,
                 "[AdamW] exp_avg_dtype, exp_avg_sq_dtype, digits: got groups that differ, expected the same in all.");
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
