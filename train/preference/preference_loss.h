#pragma once

#include <ATen/core/Tensor.h>

#include "models/decoder.h"
#include "train/data/batch.h"

namespace fsdp::train {

// Direct preference optimisation (Rafailov et al. 2023): the model's own log-probabilities, against those of the model
// that it began as, are the reward. Label smoothing e: a pair is the other way round with that probability (cDPO).
struct PreferenceRule {
  double beta = 0.1;
  double label_smoothing = 0;
};

// Of one pair: log-probabilities of the two answers, the sums over their tokens.
struct AnswerLogs {
  double chosen = 0;
  double rejected = 0;
};

// beta ((chosen - its reference) - (rejected - its reference)): by how much more the chosen answer is rewarded. fp64.
at::Tensor reward_margin(const at::Tensor& chosen, const at::Tensor& rejected, const AnswerLogs& reference,
                         const PreferenceRule& rule);

// With m that margin: -(1 - e) log sigmoid(m) - e log sigmoid(-m). Differentiable. As TRL's DPOTrainer, loss_type
// "sigmoid".
at::Tensor preference_loss(const at::Tensor& margin, const PreferenceRule& rule);

// [rows, 2], fp32, differentiable: of each row's pair the log-probabilities of the chosen and of the rejected answer.
// `batch` is on the model's device.
at::Tensor answer_logs(models::Decoder& model, const Batch& batch);

}  // namespace fsdp::train
