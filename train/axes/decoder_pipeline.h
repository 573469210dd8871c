#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"
#include "models/config/stages.h"
#include "models/decoder.h"
#include "train/axes/stage_balance.h"

namespace fsdp::train {

// What one forward of a stage reads: ids and sequences as every stage has them.
struct StageInput {
  at::Tensor input_ids_BT;
  models::Sequence sequence;
};

// Of mesh.schedule.
pipeline::Order parse_order(const std::string& schedule);

// A decoder whose blocks are in stages on several ranks, computed as one. All methods are COLLECTIVE over the ranks
// along "pp" unless marked local, which have the same batches; for one thread.
class DecoderPipeline {
 public:
  // `decoder`: this rank's stages, sharded, with the root `root`; `stages`: those of all ranks. Parameters keep their
  // names in checkpoints.
  DecoderPipeline(const Mesh& mesh, const models::Decoder& decoder, const Unit& root,
                  const std::vector<models::BlockRange>& stages, pipeline::Order order);

  // Called before a stage's forward of a microbatch, and after it.
  struct Around {
    std::function<void(const models::BlockRange& blocks, int microbatch)> before;
    std::function<void()> after;
  };
  // Of the last stage's hidden states, a scalar.
  using Loss = std::function<at::Tensor(const at::Tensor& hidden_BTE, int microbatch)>;
  // Forward and backward of the microbatches. Returns the sum of the losses, on every rank. With experts, `balance` are
  // the factors of the loss that keeps them equally busy, which is added in the backward; `loss` adds its value,
  // balance_loss().
  double step(const std::vector<StageInput>& microbatches, const Around& around, const Loss& loss,
              const BalanceFactors& balance = {});
  // Within `loss` of that microbatch. Local.
  double balance_loss(int microbatch) const { return balance_ ? balance_->loss_of(microbatch) : 0; }
  // After a step, as StageBalance::counts_LE(); undefined without experts.
  at::Tensor expert_counts() const { return balance_ ? balance_->counts_LE() : at::Tensor(); }
  // One forward without gradients. What `finish` makes of the last stage's hidden states, called there; undefined on
  // other ranks.
  using Finish = std::function<at::Tensor(const at::Tensor& hidden_BTE)>;
  at::Tensor forward(const StageInput& input, const Finish& finish);

  // Of the gradients of all stages; also COLLECTIVE over the ranks of each.
  GradNorm grad_norm(double max_norm) const { return pipeline_->grad_norm(max_norm); }
  // The last stage's number, on every rank.
  int64_t from_last(int64_t number) const;

  // Local. "layers 0-3 | 4-6, 1f1b, 8 microbatches a step: a rank waits 11 % of the time for others".
  std::string describe(int64_t num_microbatches) const;

 private:
  pipeline::Stage make_stage(const models::BlockRange& blocks, const Unit& root);

  models::Decoder decoder_;
  std::vector<models::BlockRange> stages_;
  pipeline::Order order_;
  std::shared_ptr<parallel::Ranks> ranks_;
  const std::vector<StageInput>* inputs_ = nullptr;  // of the call in progress
  Around around_;
  Finish finish_;
  std::optional<StageBalance> balance_;  // with experts
  std::optional<pipeline::Pipeline> pipeline_;
};

}  // namespace fsdp::train
