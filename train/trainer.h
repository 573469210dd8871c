#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/fsdp.h"
#include "train/batch_source.h"
#include "train/config.h"
#include "train/lr_schedule.h"
#include "train/parallelize.h"

namespace fsdp::train {

// What every rank knows after a step; equal on all of them.
struct StepResult {
  double loss = 0;  // nats per target of the global batch, before the update
  double grad_norm = 0;
  double lr = 0;
  bool stop = false;  // rank 0 wants to stop after this step
};

// Takes a sharded model through optimizer steps. COLLECTIVE: all ranks call step() the same number of times.
class Trainer {
 public:
  // `batches` and `model` must outlive the trainer.
  Trainer(const TrainConfig& config, const World& world, const BatchSource& batches, ShardedModel& model);

  // One optimizer step. `wants_stop` is heard on rank 0 only and comes back to all. Throws Error(kNonFinite) on all
  // ranks if loss or gradients are not finite; the weights are then those before the step.
  StepResult step(bool wants_stop);

  int64_t steps_done() const { return step_; }
  const LrSchedule& schedule() const { return schedule_; }
  // Lowers the number of steps of the run. Only during the warm-up, where the learning rate does not depend on it.
  void set_num_steps(int64_t steps);
  // Bytes of optimizer state on this rank.
  int64_t optimizer_bytes() const { return optimizer_.state_bytes(); }

 private:
  StepResult agree(double loss_sum, double norm, bool wants_stop) const;

  TrainConfig config_;
  World world_;
  const BatchSource& batches_;
  ShardedModel& model_;
  std::vector<at::Tensor> parameters_;
  AdamW optimizer_;
  LrSchedule schedule_;
  int64_t step_ = 0;
};

}  // namespace fsdp::train
