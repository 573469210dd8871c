// The loss that keeps experts equally busy, over all layers of experts of a decoder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/operators/expert_router.h"
#include "models/expert_ranks.h"

namespace fsdp::models {

// What one forward's layers and its backward share.
struct BalanceRound {
  at::Tensor slope_E;   // of the loss by each token's scores
  at::Tensor upstream;  // gradient of whatever the loss is part of, in the backward that runs
};

// What a forward's layers of experts chose, on this rank.
struct ExpertChoices {
  at::Tensor counts_LE;     // double: choices that fell on each
  at::Tensor score_sums_E;  // double: of scores, over tokens and layers
  int64_t tokens = 0;       // that each layer saw
  std::shared_ptr<BalanceRound> round;
};

// Of choices of all layers and ranks, and of all tokens that they saw, a token once for each layer: how the balancing
// loss grows with each token's scores. Double [E].
at::Tensor balance_slope(const at::Tensor& counts_E, double rows);

// Of one forward: begin(), watch() in each layer, finish(), then loss(). As transformers' load_balancing_loss_func:
// with f_e the choices of expert e and P_e its mean score over the tokens of all layers, E times the sum of f_e P_e,
// which is the number of experts a token takes where all are equally busy. Its gradient enters the backward at the
// layers, so that a layer that is computed again there sees it too. After: Fedus et al. 2021.
class ExpertBalance {
 public:
  void begin();
  // Returns y, what the layer makes of its tokens.
  at::Tensor watch(const at::Tensor& y, const kernels::Routing& routing);
  // Returns x, the last thing on the way to any loss.
  at::Tensor finish(const at::Tensor& x);

  // 0-dim fp32: this rank's part of the loss of that forward, to be added to a loss that came of finish()'s result.
  // Parts of all ranks add up to what one rank with all their tokens would have; those that tell of one loss have one
  // part. COLLECTIVE over `ranks`, if there are
  // any. Undefined without layers of experts, and the second time.
  at::Tensor loss(ExpertRanks* ranks);
  // In a stage of a pipeline, which has some of the layers, in place of finish() and loss(): what they chose. Undefined
  // tensors without layers of experts.
  ExpertChoices take();
  // Before the backward of that forward, after which there may have been others: `gradient_E`, fp32, is that of the
  // balancing loss by each token's scores.
  void resume(const std::shared_ptr<BalanceRound>& round, const at::Tensor& gradient_E);

  // Double [layers of experts, E]: choices that fell on each, over all ranks; known after loss().
  const at::Tensor& counts_LE() const { return counts_LE_; }

 private:
  std::shared_ptr<BalanceRound> round_;
  bool is_watching_ = false;  // false while layers are computed again
  int64_t num_tokens_ = 0;
  std::vector<at::Tensor> counts_, score_sums_;
  at::Tensor handle_;  // 0, through which the backward begins
  at::Tensor counts_LE_;
};

}  // namespace fsdp::models
