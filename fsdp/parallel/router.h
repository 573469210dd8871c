#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace fsdp::comm {
class Comm;
}  // namespace fsdp::comm

namespace fsdp::parallel {

// What the numbers of a router become before experts are chosen.
enum class ExpertScore {
  kSoftmax,  // over all experts: Mixtral, Qwen3-MoE, DeepSeek-V2
  kSigmoid,  // of each: DeepSeek-V3
};

// How a group of experts is ranked.
enum class GroupScore {
  kBest,     // by its best expert: DeepSeek-V2
  kBestTwo,  // by the sum of its two best: DeepSeek-V3
};

struct RouterOptions {
  int64_t experts_per_token = 2;
  ExpertScore score = ExpertScore::kSoftmax;
  bool normalise = true;  // the weights of a token add up to 1 (before `scale`)
  double scale = 1;       // of the weights
  int64_t groups = 1;     // equal parts of the experts; a token chooses among those of the best ones only
  int64_t best_groups = 1;
  GroupScore group_score = GroupScore::kBest;
};

// Of N tokens, E experts, K of them for each token.
struct Routing {
  at::Tensor experts_NK;  // long, best first; of equal scores the expert with the smaller number
  at::Tensor weights_NK;  // fp32 (fp64 of fp64), with a gradient
  at::Tensor scores_NE;   // likewise
};

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
