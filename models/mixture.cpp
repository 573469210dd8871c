#include "models/mixture.h"

#include <ATen/ATen.h>

#include <utility>

#include "kernels/operators/swiglu.h"
#include "kernels/products/grouped_linear.h"
#include "kernels/products/linear.h"

namespace fsdp::models {
namespace {

at::Tensor inverse_of(const at::Tensor& order) {
  return at::empty_like(order).scatter_(0, order, at::arange(order.numel(), order.options()));
}

}  // namespace

at::Tensor mix_experts(const at::Tensor& x_NE, const kernels::Routing& routing, const ComputeExperts& compute) {
  const int64_t per_token = routing.experts_NK.size(1);
  const at::Tensor by_expert = routing.experts_NK.flatten().argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor counts = kernels::count_choices(routing).cpu();
  const int64_t* count = counts.const_data_ptr<int64_t>();
  const at::Tensor y_RE = compute(x_NE.index_select(0, at::floor_divide(by_expert, per_token)),
                                  std::vector<int64_t>(count, count + counts.numel()));
  const at::Tensor y_NKE = y_RE.index_select(0, inverse_of(by_expert)).unflatten(0, {-1, per_token});
  return (y_NKE * routing.weights_NK.unsqueeze(-1).to(y_NKE.scalar_type())).sum(1);
}

RouterImpl::RouterImpl(const DecoderConfig& config, const at::TensorOptions& options)
    : weight(register_parameter("weight", torch::empty({config.experts.count, config.hidden_size}, options))),
      options_{.experts_per_token = config.experts.per_token,
               .normalise = config.experts.normalise,
               .scale = config.experts.scale,
               .groups = config.experts.groups,
               .best_groups = config.experts.best_groups} {}

kernels::Routing RouterImpl::forward(const at::Tensor& x_NE) {
  return kernels::choose_experts(kernels::linear(x_NE, weight), options_);
}

ExpertsImpl::ExpertsImpl(const DecoderConfig& config, const at::TensorOptions& options) {
  const ExpertsConfig& experts = config.experts;
  gate_up_proj = register_parameter("gate_up_proj",
                                    torch::empty({experts.count, 2 * experts.inner_size, config.hidden_size}, options));
  down_proj =
      register_parameter("down_proj", torch::empty({experts.count, config.hidden_size, experts.inner_size}, options));
}

at::Tensor ExpertsImpl::forward(const at::Tensor& x_RE, const std::vector<int64_t>& rows) {
  const std::vector<at::Tensor> gate_and_up = kernels::grouped_linear(x_RE, rows, gate_up_proj).chunk(2, -1);
  return kernels::grouped_linear(kernels::swiglu(gate_and_up[0], gate_and_up[1]), rows, down_proj);
}

MixtureImpl::MixtureImpl(const DecoderConfig& config, const at::TensorOptions& options) {
  gate_ = register_module("gate", Router(config, options));
  experts_ = register_module("experts", Experts(config, options));
  if (config.experts.shared_inner_size > 0)
    shared_experts_ =
        register_module("shared_experts", GatedMlp(config.hidden_size, config.experts.shared_inner_size, options));
}

at::Tensor MixtureImpl::forward(const at::Tensor& x_BTE, ExpertBalance& balance) {
  const at::Tensor x_NE = x_BTE.flatten(0, -2);
  const kernels::Routing routing = gate_(x_NE);
  const ComputeExperts compute = [this](const at::Tensor& x_RE, const std::vector<int64_t>& rows) {
    return experts_(x_RE, rows);
  };
  at::Tensor y_NE = ranks_ ? ranks_->mix(x_NE, routing, compute, name_) : mix_experts(x_NE, routing, compute);
  y_NE = balance.watch(y_NE, routing);
  const at::Tensor y_BTE = y_NE.view(x_BTE.sizes());
  return shared_experts_.is_empty() ? y_BTE : y_BTE + shared_experts_(x_BTE);
}

void MixtureImpl::set_ranks(std::shared_ptr<ExpertRanks> ranks, const std::string& name) {
  ranks_ = std::move(ranks);
  name_ = name;
}

}  // namespace fsdp::models
