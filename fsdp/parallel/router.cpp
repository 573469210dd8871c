#include "fsdp/parallel/router.h"

#include <ATen/ATen.h>

#include <limits>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/comm/comm.h"

namespace fsdp::parallel {
namespace {

// DeepSeek-V3's, which keeps the sum of vanishing sigmoids from being 0.
constexpr double kTinySum = 1e-20;

// Of equal numbers the first: at::topk has no order for them.
at::Tensor best_of(const at::Tensor& numbers, int64_t count) {
  return std::get<1>(numbers.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true)).narrow(-1, 0, count);
}

void check_router(int64_t experts, const RouterOptions& options) {
  const int64_t own = options.groups > 0 && experts % options.groups == 0 ? experts / options.groups : 0;
  FSDP_CHECK(own > 0, "[route] groups: got ", options.groups, " for ", experts,
             " experts, expected a number that divides them.");
  FSDP_CHECK(options.best_groups >= 1 && options.best_groups <= options.groups, "[route] best_groups: got ",
             options.best_groups, ", expected 1 to ", options.groups, ".");
  FSDP_CHECK(options.group_score == GroupScore::kBest || own >= 2,
             "[route] group_score: got the two best of groups of one expert, expected GroupScore::kBest.");
  FSDP_CHECK(options.experts_per_token >= 1 && options.experts_per_token <= own * options.best_groups,
             "[route] experts_per_token: got ", options.experts_per_token, ", expected 1 to ",
             own * options.best_groups, ".");
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

at::Tensor count_choices(const Routing& routing) {
  return at::bincount(routing.experts_NK.flatten(), /*weights=*/{}, routing.scores_NE.size(1));
}

}  // namespace

Routing route(const at::Tensor& logits_NE, const RouterOptions& options, const at::Tensor& bias_E) {
  check_router(logits_NE.size(1), options);
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

at::Tensor balance_loss(const Routing& routing) {
  const auto tokens = static_cast<double>(routing.experts_NK.size(0)),
             experts = static_cast<double>(routing.scores_NE.size(1));
  const at::Tensor shares_E = count_choices(routing).to(routing.scores_NE.scalar_type()) / tokens;
  return (shares_E * routing.scores_NE.mean(0)).sum() * experts;
}

void update_balance_bias(const at::Tensor& bias_E, const Routing& routing, double rate,
                         const std::shared_ptr<comm::Comm>& ranks) {
  const Backstage backstage;
  const at::Tensor counts = count_choices(routing).to(at::kDouble);
  if (ranks) ranks->all_reduce_small(counts, {"count choices of experts", "", ""});
  bias_E.add_((counts.mean() - counts).sign_().to(bias_E.options()), rate);
}

}  // namespace fsdp::parallel
