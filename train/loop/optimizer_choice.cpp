#include "train/loop/optimizer_choice.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::train {
namespace {

AdamWOptions adamw_options(const TrainConfig& train) {
  return {train.lr, train.beta1, train.beta2, train.eps, train.weight_decay};
}

bool has_narrow_weights(const torch::nn::Module& model) {
  const std::vector<at::Tensor> leaves = parameters(model);
  return std::any_of(leaves.begin(), leaves.end(), [](const at::Tensor& leaf) {
    return leaf.requires_grad() && leaf.scalar_type() == at::kBFloat16;
  });
}

// Weights of 16 bits learn nothing from updates smaller than their last digit, unless that is kept.
WeightDigits digits_for(const OptimizerConfig& config, const torch::nn::Module& model) {
  if (!has_narrow_weights(model)) return WeightDigits::kRounded;
  if (config.name != "adamw_8bit") return WeightDigits::kCompensated;
  return config.weight_rounding == "random" ? WeightDigits::kEightBitsAtRandom : WeightDigits::kEightBits;
}

SGDOptions sgd_options(const OptimizerConfig& config, const TrainConfig& train) {
  SGDOptions options;
  options.lr = train.lr;
  options.momentum = config.momentum;
  options.nesterov = config.nesterov && config.momentum > 0;
  return options;
}

MuonOptions muon_options(const OptimizerConfig& config, const TrainConfig& train) {
  MuonOptions options;
  options.lr = train.lr * config.muon_lr_ratio;
  options.momentum = config.momentum;
  options.nesterov = config.nesterov;
  options.weight_decay = train.weight_decay;
  options.scale = config.muon_scale == "original" ? MuonScale::kOriginal : MuonScale::kMatchRmsAdamW;
  options.by = config.muon_by == "polar_express" ? OrthogonalizeBy::kPolarExpress : OrthogonalizeBy::kNewtonSchulz;
  options.iterations = static_cast<int>(config.muon_iterations);
  options.dtype = config.muon_dtype == "fp32" ? at::kFloat : at::kBFloat16;
  return options;
}

AdafactorOptions adafactor_options(const OptimizerConfig& config, const TrainConfig& train) {
  AdafactorOptions options;
  options.lr = train.lr;
  options.weight_decay = train.weight_decay;
  options.rate = config.adafactor_rate == "relative" ? AdafactorRate::kRelative : AdafactorRate::kAbsolute;
  return options;
}

ScheduleFreeAdamWOptions schedule_free_options(const TrainConfig& train) {
  return {train.lr, train.beta1, train.beta2, train.eps, train.weight_decay, train.warmup_steps};
}

MuonGroups muon_leaves(const OptimizerConfig& config, const TrainConfig& train, models::Decoder model) {
  MuonGroups groups = muon_groups(*model, train.weight_decay);
  if (!config.muon_per_head) return groups;
  if (model->config().latent.rank > 0) {
    throw Error(ErrorCode::kUsage,
                "[config] optimizer.muon_per_head: got true with model_type " + model->config().model_type +
                    ", whose heads share projections, expected one with q_proj, k_proj and v_proj. Set it to false.");
  }
  return split_heads(std::move(groups), *model, model->config().head_dim);
}

std::unique_ptr<FlatOptimizer> make_optimizer(const OptimizerConfig& config, const TrainConfig& train,
                                              const models::Decoder& decoder) {
  const torch::nn::Module& model = *decoder;
  if (config.name == "sgd") {
    return std::make_unique<SGD>(decay_groups(model, train.weight_decay), sgd_options(config, train));
  }
  if (config.name == "adamw_8bit") {
    const auto code = config.moment_code == "linear" ? BlockCode::kLinear : BlockCode::kDynamic;
    AdamWOptions options = adamw_options(train);
    options.digits = digits_for(config, model);
    return std::make_unique<LowBitAdamW>(decay_groups(model, train.weight_decay), options, code);
  }
  if (config.name == "lion") {
    return std::make_unique<Lion>(decay_groups(model, train.weight_decay),
                                  LionOptions{.lr = train.lr, .beta1 = train.beta1, .beta2 = train.beta2});
  }
  if (config.name == "muon") {
    return std::make_unique<Muon>(muon_leaves(config, train, decoder), muon_options(config, train),
                                  adamw_options(train));
  }
  if (config.name == "adafactor") {
    return std::make_unique<Adafactor>(adafactor_groups(model, train.weight_decay), adafactor_options(config, train),
                                       adamw_options(train));
  }
  if (config.name == "schedule_free") {
    return std::make_unique<ScheduleFreeAdamW>(decay_groups(model, train.weight_decay), schedule_free_options(train));
  }
  AdamWOptions options = adamw_options(train);
  options.digits = digits_for(config, model);
  return std::make_unique<AdamW>(decay_groups(model, train.weight_decay), options);
}

}  // namespace

ChosenOptimizer::ChosenOptimizer(const OptimizerConfig& config, const TrainConfig& train, const ShardedModel& model)
    : optimizer_(make_optimizer(config, train, model.decoder)),
      lr_ratios_(optimizer_->num_groups(), 1),
      lr_after_warmup_(train.lr) {
  if (config.name == "schedule_free") schedule_free_ = static_cast<ScheduleFreeAdamW*>(optimizer_.get());
  if (config.name == "muon") lr_ratios_.front() = config.muon_lr_ratio;
}

void ChosenOptimizer::set_lr(double lr) {
  if (schedule_free_ != nullptr) return optimizer_->set_lr(lr_after_warmup_);  // the warm-up is in its average, too
  for (size_t group = 0; group < lr_ratios_.size(); ++group) optimizer_->set_lr(group, lr * lr_ratios_[group]);
}

void ChosenOptimizer::with_given_weights(const std::function<void()>& action) {
  if (schedule_free_ != nullptr) schedule_free_->use_average();
  action();
  if (schedule_free_ != nullptr) schedule_free_->use_iterates();
}

}  // namespace fsdp::train
