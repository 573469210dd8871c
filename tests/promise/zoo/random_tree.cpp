#include "tests/promise/zoo/random_tree.h"

#include <algorithm>

namespace fsdp::testing {
namespace {

constexpr int kMaxDepth = 3;

TreePlan random_node(std::mt19937& random, int64_t width, int depth) {
  const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  TreePlan plan;
  plan.width = width;
  if (depth == 0 || chance(60)) plan.hidden = 1 + static_cast<int64_t>(random() % 9);
  plan.bias = chance(70);
  plan.scale = chance(30);
  plan.frozen = depth > 0 && chance(20);
  plan.runs = depth > 0 && chance(10) ? 2 : 1;
  const auto children = depth < kMaxDepth ? static_cast<int>(random() % (depth == 0 ? 5 : 3)) : 0;
  for (int i = 0; i < children; ++i) plan.children.push_back(random_node(random, width, depth + 1));
  plan.is_unit = depth > 0 && plan.has_parameters() && chance(60);
  return plan;
}

// Parameters of the node itself go to `unit`; those of nested units to entries of their own.
void collect(const TreePlan& plan, size_t unit, std::vector<TreeUnit>& units) {
  std::vector<int64_t>& list = plan.frozen ? units[unit].frozen : units[unit].trainable;
  if (plan.hidden > 0) {
    list.push_back(plan.hidden * plan.width);
    if (plan.bias) list.push_back(plan.hidden);
    list.push_back(plan.hidden * plan.width);
    if (plan.bias) list.push_back(plan.width);
  }
  if (plan.scale) units[unit].trainable.push_back(plan.width);
  for (const TreePlan& child : plan.children) {
    size_t next = unit;
    if (child.is_unit) {
      next = units.size();
      units.push_back({{}, {}, units[unit].depth + 1});
    }
    collect(child, next, units);
  }
}

}  // namespace

bool TreePlan::has_parameters() const {
  return hidden > 0 || scale ||
         std::any_of(children.begin(), children.end(), [](const TreePlan& child) { return child.has_parameters(); });
}

TreePlan random_tree(std::mt19937& random) {
  const auto width = 1 + static_cast<int64_t>(random() % 7);
  return random_node(random, width, 0);
}

TreeImpl::TreeImpl(const TreePlan& plan) {
  namespace nn = torch::nn;
  if (plan.hidden > 0) {
    up_ = register_module("up", nn::Linear(nn::LinearOptions(plan.width, plan.hidden).bias(plan.bias)));
    down_ = register_module("down", nn::Linear(nn::LinearOptions(plan.hidden, plan.width).bias(plan.bias)));
    for (auto& parameter : parameters()) parameter.requires_grad_(!plan.frozen);
  }
  if (plan.scale) scale_ = register_parameter("scale", torch::ones({plan.width}));
  for (const TreePlan& child : plan.children) {
    children_.push_back(register_module("child" + std::to_string(children_.size()), std::make_shared<TreeImpl>(child)));
    runs_.push_back(child.runs);
  }
}

torch::Tensor TreeImpl::forward(torch::Tensor x) {
  if (!up_.is_empty()) x = x + down_(torch::tanh(up_(x)));
  if (scale_.defined()) x = x * scale_;
  for (size_t i = 0; i < children_.size(); ++i) {
    for (int run = 0; run < runs_[i]; ++run) x = children_[i]->forward(x);
  }
  return x;
}

void shard_units(TreeImpl& node, const TreePlan& plan, const Mesh& mesh, const ShardOptions& options) {
  for (size_t i = 0; i < plan.children.size(); ++i) {
    shard_units(node.child(i), plan.children[i], mesh, options);
    if (plan.children[i].is_unit) fully_shard(node.child(i), mesh, options);
  }
}

std::vector<TreeUnit> units_of(const TreePlan& plan) {
  std::vector<TreeUnit> units(1);
  collect(plan, 0, units);
  return units;
}

int64_t node_runs(const TreePlan& plan) {
  int64_t runs = 1;
  for (const TreePlan& child : plan.children) runs += child.runs * node_runs(child);
  return runs;
}

}  // namespace fsdp::testing
