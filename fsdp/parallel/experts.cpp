#include "fsdp/parallel/experts.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "fsdp/base/check.h"
#include "fsdp/parallel/layers.h"
#include "kernels/products/grouped_linear.h"

namespace fsdp::parallel {
namespace {

// [count, out, in], one after the other.
at::Tensor drawn_weights(int64_t count, int64_t out, int64_t in) {
  std::vector<at::Tensor> weights;
  for (int64_t i = 0; i < count; ++i) {
    weights.push_back(torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false))->weight.detach());
  }
  return at::stack(weights);
}

}  // namespace

at::Tensor grouped_linear(const at::Tensor& x, const std::vector<int64_t>& rows, const at::Tensor& weights) {
  return kernels::grouped_linear(x, rows, weights);
}

ExpertsImpl::ExpertsImpl(int64_t experts, int64_t hidden, int64_t inner, const Mesh& mesh, const std::string& name) {
  const auto ranks = Ranks::along(mesh, "ep");
  check_divides(experts, ranks->size(), "experts", name);
  gate_up = register_parameter("gate_up", drawn_weights(experts, 2 * inner, hidden));
  down = register_parameter("down", drawn_weights(experts, hidden, inner));
  if (ranks->size() == 1) return;
  cut_parameter(gate_up, 0, *ranks, name + ".gate_up");
  cut_parameter(down, 0, *ranks, name + ".down");
}

at::Tensor ExpertsImpl::forward(const at::Tensor& x, const std::vector<int64_t>& rows) {
  const std::vector<at::Tensor> gate_and_up = grouped_linear(x, rows, gate_up).chunk(2, -1);
  return grouped_linear(at::silu(gate_and_up[0]) * gate_and_up[1], rows, down);
}

MixtureImpl::MixtureImpl(const MixtureOptions& options, const Mesh& mesh)
    : options_(options), ranks_(Ranks::along(mesh, "ep")) {
  FSDP_CHECK(options.experts > 0 && options.hidden > 0 && options.inner > 0, "[parallel] '", options.name, "': got ",
             options.experts, " experts, hidden ", options.hidden, ", inner ", options.inner,
             ", expected numbers above 0.");
  gate = register_parameter("gate", drawn_weights(1, options.experts, options.hidden).squeeze(0));
  balance_bias = register_buffer("balance_bias", at::zeros({options.experts}, at::kFloat));
  experts = register_module("experts", Experts(options.experts, options.hidden, options.inner, mesh, options.name));
}

at::Tensor MixtureImpl::forward(const at::Tensor& x) {
  const at::Tensor x_NH = x.flatten(0, -2);
  routing = route(at::linear(x_NH, gate), options_.router, balance_bias);
  const ExpertExchange exchange(routing.experts_NK, options_.experts, ranks_, options_.name);
  const at::Tensor y = experts->forward(exchange.dispatch(x_NH), exchange.rows_of_experts());
  return exchange.combine(y, routing.weights_NK).view(x.sizes());
}

}  // namespace fsdp::parallel
