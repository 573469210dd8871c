#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "fsdp/group/parameters.h"
#include "fsdp/optim/flat_optimizer.h"

namespace fsdp {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  // In which the moments are kept, fp32 or bf16; unset: the weight's. The update computes in the weight's dtype and
  // rounds what it keeps: with bf16 a second moment stands still once it is within about 1 / (256 (1 - beta2)) of its
  // goal, relatively. The same in all groups.
  std::optional<at::ScalarType> exp_avg_dtype = {};
  std::optional<at::ScalarType> exp_avg_sq_dtype = {};
};

// Leaves that share options.
struct AdamWGroup {
  std::vector<at::Tensor> parameters;
  AdamWOptions options;
};

// AdamW with decoupled weight decay in one pass over the flat shards: reads gradient, weight and moments once, writes
// weight, moments and the low-precision model weight. After: Loshchilov & Hutter 2019; torch.optim.AdamW.
class AdamW : public FlatOptimizer {
 public:
  AdamW(std::vector<at::Tensor> parameters, AdamWOptions options);
  explicit AdamW(std::vector<AdamWGroup> groups);
  // fsdp::decay_groups(): options.weight_decay is replaced by each group's.
  AdamW(std::vector<DecayGroup> groups, AdamWOptions options);

  AdamWOptions& options(size_t group);
};

}  // namespace fsdp
