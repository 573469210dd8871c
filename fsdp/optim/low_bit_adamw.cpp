#include "fsdp/optim/low_bit_adamw.h"

#include <memory>
#include <string>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/optim/adamw_update.h"
#include "fsdp/optim/update_rule.h"
#include "kernels/flat/low_bit_adamw.h"

namespace fsdp {
namespace {

kernels::raw::BlockCodes host_codes(BlockCode code, CodeSign sign) {
  return kernels::raw::BlockCodes(code_table(code, sign).const_data_ptr<float>());
}

bool keeps_digits(const AdamWOptions& options) { return options.digits != WeightDigits::kRounded; }

void check_low_bit_options(const AdamWOptions& options, const AdamWOptions& first) {
  check_options(options);
  FSDP_CHECK(!options.exp_avg_dtype && !options.exp_avg_sq_dtype,
             "[LowBitAdamW] exp_avg_dtype, exp_avg_sq_dtype: got a dtype, expected none: moments have 8 bits.");
  FSDP_CHECK(options.digits != WeightDigits::kCompensated,
             "[LowBitAdamW] digits: got WeightDigits::kCompensated, expected kRounded for fp32 weights, or kEightBits "
             "or kEightBitsAtRandom for bf16 ones.");
  FSDP_CHECK(options.digits == first.digits, "[LowBitAdamW] digits: got groups that differ, expected the same in all.");
}

class LowBitAdamWRule : public RuleOf<AdamWOptions> {
 public:
  LowBitAdamWRule(std::vector<AdamWGroup> groups, BlockCode code)
      : code_(code), first_(host_codes(code, CodeSign::kSigned)), second_(host_codes(code, CodeSign::kUnsigned)) {
    for (AdamWGroup& group : groups) {
      check_low_bit_options(group.options, groups.front().options);
      options.push_back(group.options);
      leaves_.push_back({std::move(group.parameters), needs_of(group.options)});
    }
  }

  const char* name() const override { return "LowBitAdamW"; }

  void update(const FlatRun& run, const GradientFactor& factor) override {
    static_assert(kCodeBlock == kernels::kMomentBlock);
    const AdamWOptions& group = options[run.options];
    kernels::KeptWeights weights{run.weight};
    if (keeps_digits(group)) weights.digits = run.states[4];
    if (group.digits == WeightDigits::kEightBitsAtRandom) {
      weights.random_seed = static_cast<uint64_t>(run.parameter) << 40 ^ static_cast<uint64_t>(run.step);
      weights.begin = run.begin;
    }
    kernels::low_bit_adamw_step(weights, run.gradient, {run.states[0], run.states[1], &first_},
                                {run.states[2], run.states[3], &second_}, run.copy, step_of(run, factor));
  }

 private:
  LeafNeeds needs_of(const AdamWOptions& options) const {
    const std::string kind = code_ == BlockCode::kDynamic ? "dynamic" : "linear";
    LeafNeeds needs{{{"exp_avg_" + kind, at::kByte},
                     {"exp_avg_scale", at::kFloat, kCodeBlock},
                     {"exp_avg_sq_" + kind, at::kByte},
                     {"exp_avg_sq_scale", at::kFloat, kCodeBlock}},
                    RunOf::kBlocks};
    if (keeps_digits(options)) {
      needs.states.push_back({"digits", at::kChar});
      needs.weights = WeightTypes::k16Bit;
    }
    return needs;
  }

  kernels::AdamWStep step_of(const FlatRun& run, const GradientFactor& factor) const {
    const AdamWOptions& group = options[run.options];
    return {group.lr,           group.beta1, group.beta2,   group.eps,
            group.weight_decay, run.step,    factor.number, factor.on_device_of(run.weight)};
  }

  BlockCode code_;
  kernels::raw::BlockCodes first_, second_;
};

}  // namespace

LowBitAdamW::LowBitAdamW(std::vector<at::Tensor> parameters, AdamWOptions options, BlockCode code)
    : LowBitAdamW(std::vector<AdamWGroup>{{std::move(parameters), options}}, code) {}
LowBitAdamW::LowBitAdamW(std::vector<AdamWGroup> groups, BlockCode code)
    : FlatOptimizer(std::make_unique<LowBitAdamWRule>(std::move(groups), code)) {}
LowBitAdamW::LowBitAdamW(std::vector<DecayGroup> groups, AdamWOptions options, BlockCode code)
    : LowBitAdamW(with_decay<AdamWGroup>(std::move(groups), options), code) {}

AdamWOptions& LowBitAdamW::options(size_t group) { return static_cast<LowBitAdamWRule&>(rule()).options.at(group); }

}  // namespace fsdp
