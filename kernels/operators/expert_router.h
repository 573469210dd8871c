// Which experts of a mixture each token takes, and how much it takes of them. Composed of LibTorch's operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fsdp::kernels {

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

// logits_NE: any floating dtype. bias_E: added to scores for the choice, not to weights; none: undefined. Options that
// do not fit E: undefined results.
Routing choose_experts(const at::Tensor& logits_NE, const RouterOptions& options, const at::Tensor& bias_E = {});

// Long [E]: how many choices fell on each expert.
at::Tensor count_choices(const Routing& routing);

}  // namespace fsdp::kernels
