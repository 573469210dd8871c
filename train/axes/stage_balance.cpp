#include "train/axes/stage_balance.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace fsdp::train {
namespace {

// Of a mesh: all axes but that of the stages, as one.
std::shared_ptr<parallel::Ranks> ranks_of_stage(const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.name != "pp") axes.push_back(axis.name);
  }
  return parallel::Ranks::along(mesh.flattened(axes, "stage"), "stage");
}

// What travels forward: choices that fell on each expert [E], sums of its scores [E], and tokens times layers.
at::Tensor as_numbers(const models::ExpertChoices& choices, int64_t experts) {
  if (!choices.counts_LE.defined()) return at::zeros({2 * experts + 1}, at::kDouble);
  const double rows = static_cast<double>(choices.tokens) * static_cast<double>(choices.counts_LE.size(0));
  return at::cat({choices.counts_LE.sum(0), choices.score_sums_E, at::full({1}, rows, at::kDouble)});
}

}  // namespace

StageBalance::StageBalance(const Mesh& mesh, models::Decoder decoder, std::vector<models::BlockRange> stages)
    : world_(mesh.world()),
      decoder_(std::move(decoder)),
      stages_(std::move(stages)),
      others_(ranks_of_stage(mesh)),
      alike_(parallel::Ranks::along(mesh, "tp")) {}

void StageBalance::begin_step(const BalanceFactors& factors) {
  factors_ = factors;
  choices_.clear();
  losses_.clear();
  counts_LE_ = at::zeros({decoder_->config().num_hidden_layers, decoder_->config().experts.count}, at::kDouble);
}

pipeline::Notes StageBalance::notes() {
  return {[this](const at::Tensor& given, int stage, int micro) { return after_forward(given, stage, micro); },
          [this](const at::Tensor& given, int stage, int micro) { return before_backward(given, stage, micro); }};
}

at::Tensor StageBalance::after_forward(const at::Tensor& given, int stage, int microbatch) {
  const at::NoGradGuard no_grad;
  const models::ExpertChoices choices = decoder_->take_choices();
  count(choices, stage);
  at::Tensor numbers = as_numbers(choices, decoder_->config().experts.count);
  if (given.defined()) numbers = numbers + given;
  choices_[{stage, microbatch}] = choices;
  return stage + 1 == static_cast<int>(stages_.size()) ? settle(numbers, microbatch) : numbers;
}

void StageBalance::count(const models::ExpertChoices& choices, int stage) {
  const models::BlockRange& blocks = stages_[static_cast<size_t>(stage)];
  int64_t row = 0;
  for (int64_t layer = blocks.first; layer < blocks.last; ++layer) {
    if (decoder_->config().has_experts(layer)) counts_LE_[layer] += choices.counts_LE[row++];
  }
}

// Returns the gradient of each token's scores in the backward of that microbatch.
at::Tensor StageBalance::settle(const at::Tensor& numbers, int microbatch) {
  const int64_t experts = decoder_->config().experts.count;
  const at::Tensor counts_E = numbers.narrow(0, 0, experts), scores_E = numbers.narrow(0, experts, experts),
                   rows = numbers.narrow(0, 2 * experts, 1);
  const at::Tensor of_one_loss_E = alike_->sum(scores_E, "scores of experts");
  const at::Tensor of_all = others_->sum(at::cat({counts_E, rows}), "choices of experts");
  const at::Tensor slope_E = models::balance_slope(of_all.narrow(0, 0, experts), of_all[-1].item<double>());
  losses_[microbatch] = factors_.loss * (slope_E * of_one_loss_E).sum().item<double>();
  return slope_E * (factors_.loss * factors_.scaler);
}

at::Tensor StageBalance::before_backward(const at::Tensor& gradient_E, int stage, int microbatch) {
  const models::ExpertChoices choices = choices_.extract({stage, microbatch}).mapped();
  decoder_->resume_choices(choices, gradient_E.to(at::kFloat));
  return gradient_E;
}

at::Tensor StageBalance::counts_LE() const { return sum_over_ranks(world_, counts_LE_); }

}  // namespace fsdp::train
