// The loss that keeps experts equally busy, in a pipeline whose stages have some of the layers of experts each.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/fsdp.h"
#include "models/config/stages.h"
#include "models/decoder.h"

namespace fsdp::train {

// What an added loss is multiplied with before its backward.
struct BalanceFactors {
  double loss = 0;    // in the loss that the run tells of
  double scaler = 1;  // and in the backward once more: of GradScaler
};

// The loss is one of the choices of all layers, which no stage knows. So choices and scores of a microbatch go along
// with its activations and are added up; the last stage adds the choices of all ranks, and what follows for the scores
// goes back with the gradients. As one rank computes it: ExpertBalance. Few numbers: docs/pipeline.md.
class StageBalance {
 public:
  // COLLECTIVE over the ranks of the stage. `stages`: of all ranks.
  StageBalance(const Mesh& mesh, models::Decoder decoder, std::vector<models::BlockRange> stages);

  // Local.
  void begin_step(const BalanceFactors& factors);
  // Of that step; valid as long as this is. In the last stage COLLECTIVE over its ranks.
  pipeline::Notes notes();
  // In the last stage, after its forward of the microbatch: this rank's part of the loss, times its factor. Local.
  double loss_of(int microbatch) const { return losses_.at(microbatch); }
  // After the step. Double [layers, experts]: choices of all microbatches and ranks, zeros in layers without experts.
  // COLLECTIVE over all ranks.
  at::Tensor counts_LE() const;

 private:
  at::Tensor after_forward(const at::Tensor& given, int stage, int microbatch);
  at::Tensor before_backward(const at::Tensor& gradient_E, int stage, int microbatch);
  void count(const models::ExpertChoices& choices, int stage);
  at::Tensor settle(const at::Tensor& numbers, int microbatch);

  World world_;
  models::Decoder decoder_;
  std::vector<models::BlockRange> stages_;
  std::shared_ptr<parallel::Ranks> others_;  // of this stage, which have other tokens
  std::shared_ptr<parallel::Ranks> alike_;   // of those, that tell of one loss
  BalanceFactors factors_;
  std::map<std::pair<int, int>, models::ExpertChoices> choices_;  // by stage and microbatch, until its backward
  std::map<int, double> losses_;                                  // by microbatch
  at::Tensor counts_LE_;                                          // of this rank's layers and tokens
};

}  // namespace fsdp::train
