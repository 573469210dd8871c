// The unsharded block model in mixed precision, written out: fp32 main weights, rounded to a model that computes in
// `dtype`, whose gradients are added up over the ranks' shares in fp32.
#pragma once

#include <memory>

#include "tests/promise/models/block_model.h"

namespace fsdp::testing {

class RoundedTwin {
 public:
  RoundedTwin(torch::Dtype dtype, int ranks) : ranks_(ranks) { computing_->to(dtype); }

  BlockModel& master() { return *master_; }

  // The gradients of a step into the master's; `loss` is that of a share of the step's batch.
  template <class Loss>
  void add_gradients(const torch::Tensor& rows, Loss loss) {
    copy_weights();
    for (int rank = 0; rank < ranks_; ++rank) {
      World place;
      place.rank = rank;
      place.size = ranks_;
      loss(*computing_, share_of(place, rows)).backward();
      take_gradients();
    }
  }

 private:
  void copy_weights() {
    const torch::NoGradGuard no_grad;
    auto from = master_->parameters();
    auto to = computing_->parameters();
    for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  }

  void take_gradients() {
    auto from = computing_->parameters();
    auto to = master_->parameters();
    for (size_t i = 0; i < from.size(); ++i) {
      const torch::Tensor part = from[i].grad().to(torch::kFloat) / ranks_;
      to[i].mutable_grad() = to[i].grad().defined() ? to[i].grad() + part : part;
      from[i].mutable_grad().reset();
    }
  }

  int ranks_;
  std::shared_ptr<BlockModel> master_ = make_block_model();
  std::shared_ptr<BlockModel> computing_ = make_block_model();
};

}  // namespace fsdp::testing
