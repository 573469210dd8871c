#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fsdp/group/parameters.h"
#include "fsdp/optim/flat_optimizer.h"

namespace fsdp {

struct ScheduleFreeAdamWOptions {
  double lr = 2.5e-3;  // 1 to 10 times that of AdamW with a schedule
  double beta1 = 0.9;  // above 0: how far gradients are taken from the iterates towards their average
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;   // decoupled
  int64_t warmup_steps = 0;  // lr grows linearly in them, and what they bring counts less in the average
};

struct ScheduleFreeAdamWGroup {
  std::vector<at::Tensor> parameters;
  ScheduleFreeAdamWOptions options;
};

// AdamW whose weights are averaged as they go, so that the learning rate needs no schedule and nobody has to know where
// the training ends. The model trains with weights between the iterates and their average, and is evaluated and given
// away with the average: use_average(), and use_iterates() before it trains on or a checkpoint to go on from is saved.
// Two states, AdamW's bytes. After: Defazio et al. 2024, "The Road Less Scheduled"; facebookresearch/schedule_free,
// with r = 0 and a learning rate that is constant after the warmup.
class ScheduleFreeAdamW : public FlatOptimizer {
 public:
  ScheduleFreeAdamW(std::vector<at::Tensor> parameters, ScheduleFreeAdamWOptions options);
  explicit ScheduleFreeAdamW(std::vector<ScheduleFreeAdamWGroup> groups);
  // fsdp::decay_groups(): options.weight_decay is replaced by each group's.
  ScheduleFreeAdamW(std::vector<DecayGroup> groups, ScheduleFreeAdamWOptions options);

  // Which weights the model has. No-op where it has them already; a step with the average throws Error(kUsage). While
  // it has the average, the iterates' weights are kept, once more the bytes of the leaves, and come back bit for bit.
  // Local, by every rank alike.
  void use_average();
  void use_iterates();

  ScheduleFreeAdamWOptions& options(size_t group);
};

}  // namespace fsdp
