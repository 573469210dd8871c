#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "kernels/operators/expert_router.h"

namespace fsdp::comm {
class Comm;
}  // namespace fsdp::comm

namespace fsdp::parallel {

using kernels::ExpertScore;
using kernels::GroupScore;
using kernels::RouterOptions;
using kernels::Routing;

// logits_NE: any floating dtype. bias_E: added to scores for the choice, not to weights; none: undefined. Local. Throws
// Error(kUsage) where the options do not fit E.
Routing route(const at::Tensor& logits_NE, const RouterOptions& options, const at::Tensor& bias_E = {});

// 0-dim: E times the sum over experts of the share of tokens that chose it and the mean of its score, which is K where
// all are chosen equally often. Of this rank's tokens. After: Fedus et al. 2021, as transformers' Mixtral has it.
at::Tensor balance_loss(const Routing& routing);

// Balancing without a loss: what was chosen too often, over the tokens of all `ranks` (none: of this one), loses
// `rate`, what was chosen too seldom gains it. COLLECTIVE. After: Wang et al. 2024 (DeepSeek-V3).
void update_balance_bias(const at::Tensor& bias_E, const Routing& routing, double rate,
                         const std::shared_ptr<comm::Comm>& ranks = nullptr);

}  // namespace fsdp::parallel
