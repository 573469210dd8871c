// A layer of experts in place of the MLP: a router, the experts, and what every token takes beside them.
// Shape suffixes: B rows, T tokens, N tokens of all rows, R rows for experts, E hidden, X experts.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/operators/expert_router.h"
#include "models/config/decoder_config.h"
#include "models/expert_balance.h"
#include "models/expert_ranks.h"
#include "models/gated_mlp.h"

namespace fsdp::models {

// The numbers by which experts are chosen. A type of its own, so that adapters and fp8 leave it alone: `weight` [X, E].
class RouterImpl : public torch::nn::Module {
 public:
  RouterImpl(const DecoderConfig& config, const at::TensorOptions& options);
  kernels::Routing forward(const at::Tensor& x_NE);

  at::Tensor weight;

 private:
  kernels::RouterOptions options_;
};
TORCH_MODULE(Router);

// down(silu(gate(x)) * up(x)) of each expert: `gate_up_proj` [X, 2 inner, E] has gate above up, `down_proj`
// [X, E, inner]. X is the number of this rank's experts, where they are spread over ranks.
class ExpertsImpl : public torch::nn::Module {
 public:
  ExpertsImpl(const DecoderConfig& config, const at::TensorOptions& options);
  // x [R, E] -> [R, E]: one expert's rows after the other's, so many of each. Experts without rows get gradients of
  // zeros.
  at::Tensor forward(const at::Tensor& x_RE, const std::vector<int64_t>& rows);

  at::Tensor gate_up_proj, down_proj;
};
TORCH_MODULE(Experts);

// The sum of what a token's experts make of it, times their weights, and of the shared MLP.
class MixtureImpl : public torch::nn::Module {
 public:
  MixtureImpl(const DecoderConfig& config, const at::TensorOptions& options);

  // x, result [B, T, E]. `balance` sees what was chosen.
  at::Tensor forward(const at::Tensor& x_BTE, ExpertBalance& balance);

  const Experts& experts() const { return experts_; }
  // Null where the family has none.
  const GatedMlp& shared_experts() const { return shared_experts_; }
  // The experts may be spread over `ranks`; `name` is told in errors.
  void set_ranks(std::shared_ptr<ExpertRanks> ranks, const std::string& name);

 private:
  std::shared_ptr<ExpertRanks> ranks_;
  std::string name_;
  Router gate_{nullptr};
  Experts experts_{nullptr};
  GatedMlp shared_experts_{nullptr};
};
TORCH_MODULE(Mixture);

}  // namespace fsdp::models
