#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "fsdp/group/parameters.h"
#include "fsdp/optim/flat_optimizer.h"

namespace fsdp {

struct LionOptions {
  double lr = 1e-4;  // 3 to 10 times below AdamW's, and the decay as much above
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  // decoupled
};

struct LionGroup {
  std::vector<at::Tensor> parameters;
  LionOptions options;
};

// Steps of equal size in each element, by the sign of momentum and gradient: one state, half of AdamW's bytes. A
// gradient that has always been 0 moves nothing. After: Chen et al. 2023, "Symbolic discovery of optimization
// algorithms".
class Lion : public FlatOptimizer {
 public:
  Lion(std::vector<at::Tensor> parameters, LionOptions options);
  explicit Lion(std::vector<LionGroup> groups);
  // fsdp::decay_groups(): options.weight_decay is replaced by each group's.
  Lion(std::vector<DecayGroup> groups, LionOptions options);

  LionOptions& options(size_t group);
};

}  // namespace fsdp
