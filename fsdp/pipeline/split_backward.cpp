#include "fsdp/pipeline/split_backward.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace fsdp::pipeline {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Nodes = std::unordered_set<Node*>;

// Those below `root` that lead to `end`, and `end`.
Nodes nodes_between(Node* root, Node* end) {
  std::unordered_map<Node*, std::vector<Node*>> above;
  Nodes seen{root}, between{end};
  std::vector<Node*> open{root};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    for (const Edge& edge : std::as_const(*node).next_edges()) {
      if (!edge.is_valid()) continue;
      above[edge.function.get()].push_back(node);
      if (seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
  open = {end};
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    for (Node* const one : above[node]) {
      if (between.insert(one).second) open.push_back(one);
    }
  }
  return between;
}

// Those that lead somewhere else, too: to weights.
std::vector<Node*> branches_of(const Nodes& between) {
  std::vector<Node*> branches;
  for (Node* const node : between) {
    const edge_list& next = std::as_const(*node).next_edges();
    const auto leaves = [&](const Edge& edge) { return edge.is_valid() && between.count(edge.function.get()) == 0; };
    if (std::any_of(next.begin(), next.end(), leaves)) branches.push_back(node);
  }
  // The same order on all ranks, whatever the addresses.
  std::sort(branches.begin(), branches.end(),
            [](const Node* a, const Node* b) { return a->sequence_nr() > b->sequence_nr(); });
  return branches;
}

variable_list run(const edge_list& from, const variable_list& gradients, bool keeps_graph, const edge_list& wanted) {
  return torch::autograd::Engine::get_default_engine().execute(from, gradients, keeps_graph, /*create_graph=*/false,
                                                               /*accumulate_grad=*/wanted.empty(), wanted);
}

}  // namespace

InputPart run_input_part(const at::Tensor& output, const at::Tensor& gradient, const at::Tensor& input) {
  const Edge from = torch::autograd::impl::gradient_edge(output), to = torch::autograd::impl::gradient_edge(input);
  const at::Tensor given = gradient.defined() ? gradient : at::ones_like(output.detach());
  const Nodes between = nodes_between(from.function.get(), to.function.get());
  if (between.count(from.function.get()) == 0) return {{}, {{from}, {given}}};
  const std::vector<Node*> branches = branches_of(between);
  edge_list wanted{to};
  for (Node* const node : branches) {
    for (uint32_t i = 0; i < node->num_inputs(); ++i) wanted.emplace_back(node->getptr(), i);
  }
  const variable_list found = run({from}, {given}, /*keeps_graph=*/true, wanted);
  InputPart part{found[0], {}};
  for (size_t i = 1; i < wanted.size(); ++i) {
    if (!found[i].defined()) continue;
    part.rest.edges.push_back(wanted[i]);
    part.rest.gradients.push_back(found[i]);
  }
  const Nodes is_branch(branches.begin(), branches.end());
  // What a branch saved may hold the operators that made it.
  for (Node* const node : between) {
    if (is_branch.count(node) == 0) node->release_variables();
  }
  // A branch computes what it is asked for, and what it has no edge for nobody asks.
  for (Node* const node : branches) {
    for (Edge& edge : node->next_edges()) {
      if (edge.is_valid() && between.count(edge.function.get()) > 0) edge = Edge();
    }
  }
  return part;
}

void run_weights_part(const WeightsPart& part) {
  if (!part.edges.empty()) run(part.edges, part.gradients, /*keeps_graph=*/false, {});
}

}  // namespace fsdp::pipeline
