#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "fsdp/group/parameters.h"
#include "fsdp/optim/flat_optimizer.h"

namespace fsdp {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // added to the gradient, as in torch.optim.SGD
  bool nesterov = false;
};

struct SGDGroup {
  std::vector<at::Tensor> parameters;
  SGDOptions options;
};

// Stochastic gradient descent over the flat shards, with momentum. Semantics of torch.optim.SGD.
class SGD : public FlatOptimizer {
 public:
  SGD(std::vector<at::Tensor> parameters, SGDOptions options);
  explicit SGD(std::vector<SGDGroup> groups);
  SGD(std::vector<DecayGroup> groups, SGDOptions options);

  SGDOptions& options(size_t group);
};

}  // namespace fsdp
