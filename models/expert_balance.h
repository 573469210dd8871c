// The loss that keeps experts equally busy, over all layers of experts of a decoder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/operators/expert_router.h"
#include "models/expert_ranks.h"

namespace fsdp::models {

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
  // Parts of all ranks add up to what one rank with all their tokens would have. COLLECTIVE over `ranks`, if there are
  // any. Undefined without layers of experts, and the second time.
  at::Tensor loss(ExpertRanks* ranks);
  // Double [layers of experts, E]: choices that fell on each, over all ranks; known after loss().
  const at::Tensor& counts_LE() const { return counts_LE_; }

  // What one forward's layers and its backward share.
  struct Round {
    at::Tensor slope_E;   // of the loss by each token's scores
    at::Tensor upstream;  // gradient of whatever the loss is part of
  };

 private:
  std::shared_ptr<Round> round_;
  bool is_watching_ = false;  // false while layers are computed again
  int64_t num_tokens_ = 0;
  std::vector<at::Tensor> counts_, score_sums_;
  at::Tensor handle_;  // 0, through which the backward begins
  at::Tensor counts_LE_;
};

}  // namespace fsdp::models
