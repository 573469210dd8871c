#include "kernels/base/once_differentiable.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <utility>

namespace fsdp::kernels {
namespace {

// Shared or intrusive, as the version of LibTorch has it.
using NodeOwner = decltype(torch::autograd::Edge::function);

// A search for inputs visits only nodes on a way to them, so this one leads to everything that the results may depend
// on: the inputs of the operator and the gradients that came. LibTorch's DelayedError leads nowhere.
NodeOwner node_that_throws(const char* op, const char* instead, const std::vector<at::Tensor>& grads) {
  torch::autograd::edge_list edges = torch::autograd::collect_next_edges(grads);
  if (const NodeOwner running = torch::autograd::get_current_node()) {
    const torch::autograd::edge_list& of_inputs = running->next_edges();
    edges.insert(edges.end(), of_inputs.begin(), of_inputs.end());
  }
  std::unique_ptr<torch::autograd::Node> node = std::make_unique<torch::autograd::Error>(
      c10::str("[", op, "] got a gradient of a gradient, expected first derivatives only: this operator has no second ",
               "ones. Use ", instead, " there."),
      std::move(edges));
  return NodeOwner(std::move(node));
}

}  // namespace

std::vector<at::Tensor> once_differentiable(const char* op, const char* instead, const std::vector<at::Tensor>& grads,
                                            std::vector<at::Tensor> results) {
  if (!at::GradMode::is_enabled()) return results;
  const NodeOwner node = node_that_throws(op, instead, grads);
  for (at::Tensor& result : results) {
    if (result.defined()) result = result.tensor_data();  // without what operators recorded of its making
    torch::autograd::set_history(result, node);
  }
  return results;
}

}  // namespace fsdp::kernels
