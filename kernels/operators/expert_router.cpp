#include "kernels/operators/expert_router.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

namespace fsdp::kernels {
namespace {

// DeepSeek-V3's, which keeps the sum of vanishing sigmoids from being 0.
constexpr double kTinySum = 1e-20;

// Of equal numbers the first: at::topk has no order for them.
at::Tensor best_of(const at::Tensor& numbers, int64_t count) {
  return std::get<1>(numbers.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true)).narrow(-1, 0, count);
}

// Scores by which experts are chosen: those of other groups than the best are out of reach.
at::Tensor in_best_groups(const at::Tensor& scores_NE, const RouterOptions& options) {
  if (options.best_groups == options.groups) return scores_NE;
  const at::Tensor by_group = scores_NE.unflatten(-1, {options.groups, -1});
  const at::Tensor group_scores =
      options.group_score == GroupScore::kBest ? by_group.amax(-1) : std::get<0>(by_group.topk(2, -1)).sum(-1);
  const at::Tensor is_out = at::ones_like(group_scores, at::kBool)
                                .scatter_(-1, best_of(group_scores, options.best_groups), false)
                                .unsqueeze(-1)
                                .expand_as(by_group);
  return by_group.masked_fill(is_out, -std::numeric_limits<double>::infinity()).flatten(-2);
}

}  // namespace

Routing choose_experts(const at::Tensor& logits_NE, const RouterOptions& options, const at::Tensor& bias_E) {
  const at::Tensor logits = logits_NE.scalar_type() == at::kDouble ? logits_NE : logits_NE.to(at::kFloat);
  Routing routing;
  routing.scores_NE = options.score == ExpertScore::kSoftmax ? logits.softmax(-1) : logits.sigmoid();
  {
    const at::NoGradGuard no_grad;
    const at::Tensor wanted = bias_E.defined() ? routing.scores_NE + bias_E : routing.scores_NE;
    routing.experts_NK = best_of(in_best_groups(wanted, options), options.experts_per_token).contiguous();
  }
  at::Tensor weights = routing.scores_NE.gather(-1, routing.experts_NK);
  if (options.normalise) weights = weights / (weights.sum(-1, /*keepdim=*/true) + kTinySum);
  routing.weights_NK = options.scale == 1 ? weights : weights * options.scale;
  return routing;
}

at::Tensor count_choices(const Routing& routing) {
  return at::bincount(routing.experts_NK.flatten(), /*weights=*/{}, routing.scores_NE.size(1));
}

}  // namespace fsdp::kernels
