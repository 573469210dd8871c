#include "train/preference/preference_loss.h"

#include <ATen/ATen.h>

#include <vector>

namespace fsdp::train {

at::Tensor reward_margin(const at::Tensor& chosen, const at::Tensor& rejected, const AnswerLogs& reference,
                         const PreferenceRule& rule) {
  return ((chosen.to(at::kDouble) - reference.chosen) - (rejected.to(at::kDouble) - reference.rejected)) * rule.beta;
}

at::Tensor preference_loss(const at::Tensor& margin, const PreferenceRule& rule) {
  const at::Tensor loss = -at::log_sigmoid(margin);
  if (rule.label_smoothing == 0) return loss;
  return loss * (1 - rule.label_smoothing) - at::log_sigmoid(-margin) * rule.label_smoothing;
}

// Hidden states are cut once, so that the backward puts them together once; the head computes each document's alone.
at::Tensor answer_logs(models::Decoder& model, const Batch& batch) {
  const int64_t length = batch.input_ids_BT.size(1);
  std::vector<int64_t> sizes;
  for (const PairPlace& pair : batch.pairs) {
    for (const int64_t size : {pair.chosen_end, pair.end - pair.chosen_end, length - pair.end}) sizes.push_back(size);
  }
  const at::Tensor hidden_NE = model->hidden_states(batch.input_ids_BT, batch.sequence).flatten(0, 1);
  const std::vector<at::Tensor> pieces = hidden_NE.split_with_sizes(sizes);
  const std::vector<at::Tensor> targets = batch.targets_N.split_with_sizes(sizes);
  std::vector<at::Tensor> logs;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i % 3 == 2) continue;  // padding
    logs.push_back(-model->loss_of(pieces[i].unsqueeze(0), targets[i], kernels::Reduction::kSum));
  }
  return at::stack(logs).view({-1, 2});
}

}  // namespace fsdp::train
