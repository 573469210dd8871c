#pragma once

#include <memory>
#include <vector>

#include "fsdp/fsdp.h"
#include "train/config/config.h"
#include "train/model/parallelize.h"

namespace fsdp::train {

// The optimizer of a run.
class ChosenOptimizer {
 public:
  // Over the leaves of a model that is sharded as block_layout() says. Throws Error(kUsage) as the optimizer does.
  ChosenOptimizer(const OptimizerConfig& config, const TrainConfig& train, const ShardedModel& model);

  FlatOptimizer& operator*() const { return *optimizer_; }
  FlatOptimizer* operator->() const { return optimizer_.get(); }
  // Of the run; groups may have a multiple of it.
  void set_lr(double lr);

 private:
  std::unique_ptr<FlatOptimizer> optimizer_;
  std::vector<double> lr_ratios_;  // of the groups
};

}  // namespace fsdp::train
