#include "train/trainer.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <string>

#include "train/agreement.h"

namespace fsdp::train {
namespace {

AdamWOptions adamw_options(const TrainConfig& config) {
  return {config.lr, config.beta1, config.beta2, config.eps, config.weight_decay};
}

}  // namespace

Trainer::Trainer(const TrainConfig& config, const World& world, const BatchSource& batches, ShardedModel& model)
    : config_(config),
      world_(world),
      batches_(batches),
      model_(model),
      parameters_(parameters(*model.decoder)),
      optimizer_(decay_groups(*model.decoder, config.weight_decay), adamw_options(config)),
      schedule_{config.lr, config.min_lr_ratio, config.warmup_steps, config.steps} {}

StepResult Trainer::step(bool wants_stop) {
  const auto num_targets = static_cast<double>(batches_.num_targets(step_));
  const int64_t num_micro = batches_.num_microbatches();
  double loss_sum = 0;

  zero_grad(*model_.decoder);
  for (int64_t micro = 0; micro < num_micro; ++micro) {
    const Microbatch scope(model_.root, /*is_last=*/micro + 1 == num_micro);
    const Batch batch = batches_.microbatch(step_, micro);
    const at::Tensor loss = summed_loss(model_.decoder, batch) / num_targets;  // of the global batch: ranks add up
    loss.backward();
    loss_sum += loss.item<double>();
  }
  const double max_norm = config_.clip > 0 ? config_.clip : std::numeric_limits<double>::infinity();
  const GradNorm norm = grad_norm(parameters_, max_norm);
  StepResult result = agree(loss_sum, norm.norm, wants_stop);  // before the update, which must not see a NaN
  result.lr = schedule_.at(step_);
  optimizer_.set_lr(result.lr);
  optimizer_.step(norm.factor);
  ++step_;
  return result;
}

// The small all-reduce of the step: the loss of all ranks, and rank 0's wish to stop.
StepResult Trainer::agree(double loss_sum, double norm, bool wants_stop) const {
  at::Tensor values = at::zeros({2}, at::kDouble);
  values[0] = loss_sum;
  values[1] = world_.rank == 0 && wants_stop ? 1.0 : 0.0;
  values = sum_over_ranks(world_, values);
  StepResult result;
  result.loss = values[0].item<double>();
  result.grad_norm = norm;
  result.stop = values[1].item<double>() > 0;
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    throw AgreedError(ErrorCode::kNonFinite,
                      "[train] step " + std::to_string(step_ + 1) + ": loss " + std::to_string(result.loss) +
                          ", gradient norm " + std::to_string(result.grad_norm) +
                          ": not finite. Lower train.lr, lengthen train.warmup_steps or set train.clip.",
                      /*told_elsewhere=*/world_.rank != 0);
  }
  return result;
}

void Trainer::set_num_steps(int64_t steps) {
  if (step_ > schedule_.warmup_steps || steps < schedule_.warmup_steps) {
    throw Error(ErrorCode::kInternal, "[train] the number of steps can change during the warm-up only");
  }
  schedule_.steps = steps;
}

}  // namespace fsdp::train
