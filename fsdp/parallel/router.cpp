#include "fsdp/parallel/router.h"

#include <ATen/ATen.h>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"
#include "fsdp/comm/comm.h"

namespace fsdp::parallel {
namespace {

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

}  // namespace

Routing route(const at::Tensor& logits_NE, const RouterOptions& options, const at::Tensor& bias_E) {
  check_router(logits_NE.size(1), options);
  return kernels::choose_experts(logits_NE, options, bias_E);
}

at::Tensor balance_loss(const Routing& routing) {
  const auto tokens = static_cast<double>(routing.experts_NK.size(0)),
             experts = static_cast<double>(routing.scores_NE.size(1));
  const at::Tensor shares_E = kernels::count_choices(routing).to(routing.scores_NE.scalar_type()) / tokens;
  return (shares_E * routing.scores_NE.mean(0)).sum() * experts;
}

void update_balance_bias(const at::Tensor& bias_E, const Routing& routing, double rate,
                         const std::shared_ptr<comm::Comm>& ranks) {
  const Backstage backstage;
  const at::Tensor counts = kernels::count_choices(routing).to(at::kDouble);
  if (ranks) ranks->all_reduce_small(counts, {"count choices of experts", "", ""});
  bias_E.add_((counts.mean() - counts).sign_().to(bias_E.options()), rate);
}

}  // namespace fsdp::parallel
