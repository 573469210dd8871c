#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fsdp/fsdp.h"

namespace fsdp::testing {

// A module tree made by chance: what each node holds, which nodes become units, which parameters are frozen.
struct TreePlan {
  int64_t width = 1;   // features in and out
  int64_t hidden = 0;  // of a two-layer perceptron; 0: none
  bool bias = true;
  bool scale = false;   // a vector of its own
  bool frozen = false;  // the perceptron
  bool is_unit = false;
  int runs = 1;  // how often the parent runs it
  std::vector<TreePlan> children;

  bool has_parameters() const;
};

// Always with a trainable perceptron at the root; sizes are odd, even and 1, often smaller than the number of ranks.
TreePlan random_tree(std::mt19937& random);

class TreeImpl : public torch::nn::Module {
 public:
  explicit TreeImpl(const TreePlan& plan);
  torch::Tensor forward(torch::Tensor x);
  TreeImpl& child(size_t i) { return *children_[i]; }

 private:
  torch::nn::Linear up_{nullptr};
  torch::nn::Linear down_{nullptr};
  torch::Tensor scale_;
  std::vector<std::shared_ptr<TreeImpl>> children_;
  std::vector<int> runs_;
};

// Makes units of the nodes below `node` that are to be some, inner ones first.
void shard_units(TreeImpl& node, const TreePlan& plan, const Mesh& mesh, const ShardOptions& options);

// Facts about the units that a plan leads to.
struct TreeUnit {
  std::vector<int64_t> trainable;  // elements of each parameter
  std::vector<int64_t> frozen;
  int depth = 0;  // units above it
};
std::vector<TreeUnit> units_of(const TreePlan& plan);
// How often a forward runs a node.
int64_t node_runs(const TreePlan& plan);

}  // namespace fsdp::testing
