#pragma once

#include <functional>
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
  // Whether the weights that train are not those to evaluate and give away.
  bool has_average() const { return schedule_free_ != nullptr; }
  // Runs `action` while the model has those. COLLECTIVE.
  void with_given_weights(const std::function<void()>& action);

 private:
  std::unique_ptr<FlatOptimizer> optimizer_;
  std::vector<double> lr_ratios_;  // of the groups
  double lr_after_warmup_;
  ScheduleFreeAdamW* schedule_free_ = nullptr;
};

}  // namespace fsdp::train
