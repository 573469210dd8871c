#include "train/axes/expert_places.h"

namespace fsdp::train {

at::Tensor ExpertPlaces::mix(const at::Tensor& x_NE, const kernels::Routing& routing,
                             const models::ComputeExperts& compute, const std::string& layer) {
  if (ranks_->size() == 1) return models::mix_experts(x_NE, routing, compute);
  const parallel::ExpertExchange exchange(routing.experts_NK, routing.scores_NE.size(1), ranks_, layer);
  return exchange.combine(compute(exchange.dispatch(x_NE), exchange.rows_of_experts()), routing.weights_NK);
}

bool is_of_experts(const std::string& name) { return name.find(".mlp.experts.") != std::string::npos; }

void cut_experts(const std::string& name, const at::Tensor& parameter, const parallel::Ranks& ranks) {
  if (is_of_experts(name) && ranks.size() > 1) parallel::cut_parameter(parameter, 0, ranks, name);
}

}  // namespace fsdp::train
