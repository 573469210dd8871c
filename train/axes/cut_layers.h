#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fsdp.h"
#include "models/across_ranks.h"

namespace fsdp::train {

// Tensor and sequence parallelism for a decoder, over the ranks along "tp", and context parallelism over those along
// "cp"; either may be this rank alone. Bytes: see docs/parallelism.md.
class CutLayers : public models::AcrossRanks {
 public:
  CutLayers(std::shared_ptr<parallel::Ranks> tensor, std::shared_ptr<parallel::Ranks> context,
            parallel::ContextExchange exchange)
      : ranks_(std::move(tensor)), context_(std::move(context)), exchange_(exchange) {}

  at::Tensor enter_layer(const at::Tensor& x_BTE, const std::string& layer) override;
  at::Tensor leave_layer(const at::Tensor& y_BTE, const at::Tensor& bias_E, const std::string& layer) override;
  at::Tensor embed(const at::Tensor& weight_VE, const at::Tensor& ids_BT) override;
  at::Tensor logits(const at::Tensor& hidden_BTE, const at::Tensor& weight_VE) override;
  at::Tensor loss(const at::Tensor& hidden_BTE, const at::Tensor& weight_VE, const at::Tensor& targets_N,
                  kernels::Reduction reduction, const kernels::LossTerms& terms) override;
  int64_t sequence_parts() const override { return context_->size(); }
  at::Tensor part_of_sequences(const at::Tensor& x_BT) const override;
  at::Tensor attend(const at::Tensor& q_BTHD, const at::Tensor& k_BTKD, const at::Tensor& v_BTKD,
                    const std::vector<int64_t>& document_lengths, int64_t window, const std::string& layer) override;

 private:
  // What the queries of one forward see, in layers of one window; kept for the next, whose documents may be the same.
  struct View {
    std::vector<int64_t> document_lengths;
    at::Tensor mask;
  };
  const at::Tensor& mask_of(const at::Tensor& q_BTHD, const std::vector<int64_t>& document_lengths, int64_t window);

  std::shared_ptr<parallel::Ranks> ranks_, context_;
  parallel::ContextExchange exchange_;
  std::map<int64_t, View> views_;  // by window
};

}  // namespace fsdp::train
