// A backward in two parts: what the stage before waits for, and what can be done later.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>

namespace fsdp::pipeline {

// What is left of a graph: operators that read weights, with the gradients of their results, and what they saved.
struct WeightsPart {
  torch::autograd::edge_list edges;
  torch::autograd::variable_list gradients;
};

struct InputPart {
  at::Tensor gradient;  // of the input; undefined: the output does not depend on it
  WeightsPart rest;
};

// Of a graph from `input`, a leaf, to `output`, whose gradient is `gradient` (undefined: 1); nobody else needs it, and
// it is taken apart. No weight gets a gradient. What is saved for anything but the weights goes with `output`. Local.
InputPart run_input_part(const at::Tensor& output, const at::Tensor& gradient, const at::Tensor& input);

// Weights get their gradients, as in any backward. Local.
void run_weights_part(const WeightsPart& part);

}  // namespace fsdp::pipeline
