#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/fsdp.h"
#include "train/base/metrics.h"
#include "train/config/config.h"
#include "train/config/lr_schedule.h"
#include "train/data/batch_source.h"
#include "train/loop/optimizer_choice.h"
#include "train/loop/spike_detector.h"
#include "train/model/parallelize.h"
#include "train/preference/objective.h"

namespace fsdp::train {

// What one rank has to tell the others; it travels with the loss of the step.
struct RankNews {
  bool wants_stop = false;    // heard on rank 0 only: the time is over
  bool wants_save = false;    // heard on rank 0 only: a checkpoint is due by its clock
  int signal = 0;             // that asked this process to stop
  bool save_written = false;  // its part of the checkpoint in flight is on the disk
  bool stop_file = false;     // heard on rank 0 only: somebody asks for a stop by the file STOP
};

// What every rank knows after a step; equal on all of them.
struct StepResult {
  enum class Outcome {
    kUpdated,
    kSkipped,   // loss or gradients were not finite, or a spike: the weights are those before the step
    kRollBack,  // the same, and the run wants its last checkpoint back; the step does not count
  };
  enum class Recomputed { kNo, kEqual, kTransient };

  Outcome outcome = Outcome::kUpdated;
  double loss = 0;  // nats per target of the global batch, before the update
  double grad_norm = 0;
  double lr = 0;
  uint64_t batch_hash = 0;                  // hash_rows() of all ranks, added up
  Recomputed recomputed = Recomputed::kNo;  // kTransient: the first computation was wrong, and a second one is used
  bool stop = false;                        // rank 0 wants to stop after this step
  bool save = false;                        // rank 0 wants a checkpoint
  int signal = 0;                           // some rank was asked to stop
  bool saves_written = false;               // on every rank
  bool stop_file = false;                   // rank 0 was asked to stop by a file
  double loss_scale = 0;                    // the loss was multiplied with before its backward; 0: none, not fp16
  bool overflowed = false;                  // kSkipped, because gradients did not fit into fp16 at that scale
  std::optional<PreferenceFigures> preference = {};
  double fullest_expert = 0;   // the largest share of a layer's choices that fell on one; 0: no experts
  double busiest_experts = 1;  // choices that fell on those of the busiest rank along "ep", over an equal share
  std::optional<Spike> spike;  // the numbers are far above those of the steps before
};

// What there is to tell of a step besides its numbers: "skipped: loss nan, ..."; empty: nothing. `scaler`: that of the
// losses, or null.
std::string describe_trouble(const StepResult& result, const GradScaler* scaler);

// Takes a sharded model through optimizer steps. A model that computes in fp16 has its loss scaled: gradients that
// overflow cost the step, and the scale a factor, and are no trouble unless they do so at scale 1. COLLECTIVE: all
// ranks call step() the same number of times.
class Trainer {
 public:
  // `batches` and `model` must outlive the trainer.
  Trainer(const TrainConfig& config, const World& world, const BatchSource& batches, ShardedModel& model,
          const CheckConfig& check = {}, const OptimizerConfig& optimizer = {});

  // One optimizer step. What is not finite is computed once more, to tell a passing error of the machine from one of
  // the numbers; the latter ends as config.on_nonfinite says. For "stop" throws Error(kNonFinite) on all ranks; the
  // weights are then those before the step. Spikes end as config.on_spike says, and are computed again too before
  // anything is given up for them. Random numbers of a microbatch depend on the seed and on its place in the data only.
  StepResult step(const RankNews& news = {});
  // Counts the step that `result` (kRollBack) is of, with the weights as they are.
  void skip(const StepResult& result);

  // Minimises the loss of pairs in place of the cross entropy of tokens.
  void prefer(PreferenceObjective objective) { objective_ = std::move(objective); }
  const PreferenceObjective* objective() const { return objective_ ? &*objective_ : nullptr; }

  int64_t steps_done() const { return step_; }
  // As if so many steps had been done: for a resumed run.
  void continue_at(int64_t step) { step_ = step; }
  const LrSchedule& schedule() const { return schedule_; }
  // Lowers the number of steps of the run. Only during the warm-up, where the learning rate does not depend on it.
  void set_num_steps(int64_t steps);
  // The same for a resumed run, which knows the number from before.
  void restore_num_steps(int64_t steps) { schedule_.steps = steps; }
  // The last steps, that spikes are seen against: part of a checkpoint.
  SpikeDetector& spikes() { return spikes_; }
  FlatOptimizer& optimizer() { return *optimizer_; }
  GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }  // of fp16 training; part of a checkpoint
  Fp8DelayedScales& fp8_scales() { return fp8_scales_; }          // part of a checkpoint
  const std::vector<at::Tensor>& leaves() const { return parameters_; }
  // Runs `action` while the model has the averages, which there must be, as its weights. COLLECTIVE.
  void with_averages(const std::function<void()>& action);
  // The same with the weights that are given away: those that train, or the average that schedule_free makes of them.
  void with_given_weights(const std::function<void()>& action) { optimizer_.with_given_weights(action); }
  bool gives_average() const { return optimizer_.has_average(); }
  Ema* ema() { return ema_ ? &*ema_ : nullptr; }  // averages of the weights, if config.ema asks for them
  // Bytes of optimizer state on this rank, averages included.
  int64_t optimizer_bytes() const;

 private:
  struct Computed {
    double loss = 0;                  // of this rank's part
    std::vector<double> losses = {};  // of its microbatches, that add up to it
    double grad_norm = 0;             // of all ranks
    at::Tensor clip_factor;           // likewise, on their device
    uint64_t batch_hash = 0;
    PreferenceSums preference = {};
    at::Tensor expert_counts_LE = {};  // choices that fell on each expert, of all ranks; undefined without experts
  };
  Computed compute();
  at::Tensor balanced(const at::Tensor& loss, Computed& computed) const;
  at::Tensor loss_of(const Batch& batch, Computed& computed);
  at::Tensor compute_microbatches(Computed& computed);
  at::Tensor compute_in_stages(Computed& computed);
  Batch next_microbatch(int64_t micro, Computed& computed) const;
  kernels::LossTerms loss_terms() const;
  GradNorm norm_of_gradients();
  StepResult agree(const Computed& computed, const RankNews& news) const;
  bool has_overflowed(const StepResult& result) const;
  void update(const StepResult& result, const Computed& computed);
  void update_average();
  bool is_due_for_check() const;
  bool is_doubtful(const StepResult& result) const;
  void judge(StepResult& result) const;
  StepResult check_again(const StepResult& first, Computed& computed, const RankNews& news);
  std::string origin_of_overflow() const;
  void give_up(const StepResult& result) const;
  Batch next_batch(int64_t micro) const;
  // `first_block`: of the stage that draws them.
  void seed_random_numbers(int64_t position, int64_t first_block = 0) const;

  TrainConfig config_;
  CheckConfig check_;
  World world_;
  const BatchSource& batches_;
  ShardedModel& model_;
  std::vector<at::Tensor> parameters_;
  ChosenOptimizer optimizer_;
  std::optional<PreferenceObjective> objective_;
  std::optional<Ema> ema_;
  std::optional<GradScaler> scaler_;
  Fp8DelayedScales fp8_scales_;
  LrSchedule schedule_;
  SpikeDetector spikes_;
  int64_t step_ = 0;
};

}  // namespace fsdp::train
