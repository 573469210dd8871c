#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "fsdp/group/parameters.h"
#include "fsdp/optim/flat_optimizer.h"

namespace fsdp {

// What becomes of the digits of an updated weight for which its type has no room.
enum class WeightDigits {
  kRounded,  // nothing. Weights are fp32, or fp64 on the CPU (default)
  // They are kept, in the weight's type, and come back with the next update (Kahan's sum): bf16 and fp16 weights learn
  // from updates that are far smaller than their last digit. CPU. One more tensor in the state: `compensation`.
  kCompensated,
  // Of LowBitAdamW, whose weights are bf16 then, on the CPU: the next eight are kept, in a byte beside the weight, and
  // what they have no room for is rounded to the nearest. One more tensor in the state: `digits`.
  kEightBits,
  kEightBitsAtRandom,  // the same, but rounded up or down at random, so that in the mean nothing is lost
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  // In which the moments are kept, fp32 or bf16, the first also fp16; unset: the weight's. The update computes in the
  // weight's dtype and rounds what it keeps: with bf16 a second moment stands still once it is within about 1 / (256 (1
  // - beta2)) of its goal, relatively. The same in all groups.
  std::optional<at::ScalarType> exp_avg_dtype = {};
  std::optional<at::ScalarType> exp_avg_sq_dtype = {};
  WeightDigits digits = WeightDigits::kRounded;  // the same in all groups
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
