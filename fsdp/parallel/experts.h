#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/mesh/mesh.h"
#include "fsdp/parallel/expert_exchange.h"
#include "fsdp/parallel/router.h"

namespace fsdp::parallel {

// x [R, in], one expert's rows after the other's; weights [experts, out, in] -> [R, out]: each row times the weight of
// its expert, W x. Experts without rows get a gradient of zeros. On CUDA in bf16 one product for all of them.
at::Tensor grouped_linear(const at::Tensor& x, const std::vector<int64_t>& rows, const at::Tensor& weights);

// The feed-forward networks of a mixture, silu(gate x) * (up x) and down, of this rank. gate_up [E/ranks, 2 inner,
// hidden] has gate above up, down [E/ranks, hidden, inner]: transformers' layout of Mixtral and Qwen3-MoE. Weights are
// drawn as those of torch::nn::Linear, for all experts, and the part kept; the mesh axis is "ep".
class ExpertsImpl : public torch::nn::Module {
 public:
  ExpertsImpl(int64_t experts, int64_t hidden, int64_t inner, const Mesh& mesh, const std::string& name = "experts");
  // x [R, hidden], rows of each of this rank's experts. Local.
  at::Tensor forward(const at::Tensor& x, const std::vector<int64_t>& rows);

  at::Tensor gate_up;
  at::Tensor down;
};
TORCH_MODULE(Experts);

struct MixtureOptions {
  int64_t experts = 8;
  int64_t hidden = 0;
  int64_t inner = 0;  // of one expert
  RouterOptions router = {};
  std::string name = "mixture";  // in errors
};

// A layer of experts: a router, this rank's experts, and the way between them. Ranks along "ep" have tokens of their
// own. To shard it: fully_shard(*layer->experts, mesh) with the mesh that has "ep", then the model around it with
// mesh.flattened({"shard", "ep"}, "shard"), over which everything else is the same.
class MixtureImpl : public torch::nn::Module {
 public:
  MixtureImpl(const MixtureOptions& options, const Mesh& mesh);
  // x [..., hidden] -> the same. COLLECTIVE over "ep", and so is the backward.
  at::Tensor forward(const at::Tensor& x);

  at::Tensor gate;          // [experts, hidden], whole
  at::Tensor balance_bias;  // [experts], fp32: a buffer, zero at first (update_balance_bias)
  Experts experts{nullptr};
  Routing routing;  // of the last forward: for balance_loss() and update_balance_bias()

 private:
  MixtureOptions options_;
  std::shared_ptr<Ranks> ranks_;
};
TORCH_MODULE(Mixture);

}  // namespace fsdp::parallel
