#pragma once

#include <memory>
#include <string>

#include "fsdp/fsdp.h"
#include "models/across_ranks.h"

namespace fsdp::train {

// Tensor and sequence parallelism for a decoder, over the ranks along "tp". Bytes: see docs/parallelism.md.
class CutLayers : public models::AcrossRanks {
 public:
  explicit CutLayers(std::shared_ptr<parallel::Ranks> ranks) : ranks_(std::move(ranks)) {}

  at::Tensor enter_layer(const at::Tensor& x_BTE, const std::string& layer) override;
  at::Tensor leave_layer(const at::Tensor& y_BTE, const at::Tensor& bias_E, const std::string& layer) override;
  at::Tensor embed(const at::Tensor& weight_VE, const at::Tensor& ids_BT) override;
  at::Tensor logits(const at::Tensor& hidden_BTE, const at::Tensor& weight_VE) override;
  at::Tensor loss(const at::Tensor& hidden_BTE, const at::Tensor& weight_VE, const at::Tensor& targets_N,
                  kernels::Reduction reduction, const kernels::LossTerms& terms) override;

 private:
  std::shared_ptr<parallel::Ranks> ranks_;
};

}  // namespace fsdp::train
