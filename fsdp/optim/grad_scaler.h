#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/optim/clip_grad_norm.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace fsdp {

class FlatOptimizer;

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;     // when no gradient overflowed for growth_interval steps
  double backoff_factor = 0.5;  // when one did
  int64_t growth_interval = 2000;
};

// For checkpoints (checkpoint::State::scaler keeps it). Equal on all ranks.
struct GradScalerState {
  double scale = 0;
  int64_t steps_without_overflow = 0;  // since the scale changed last

  bool operator==(const GradScalerState&) const = default;
};

// What became of an optimizer's step; the same on every rank.
enum class ScaledStep {
  kTaken,
  kSkipped,  // a gradient was inf or NaN on some rank: weights and the optimizer's state are as they were
};

// Dynamic loss scaling, for gradients that fp16 would round to zero: losses are multiplied before the backward, and
// gradients divided after their reduction.
//   scaler.scale(loss).backward();
//   scaler.unscale_(*model);              // only where gradients are read or clipped before the step
//   clip_grad_norm_(*model, 1.0);
//   scaler.step(optimizer);
//   scaler.update();
// Whether any rank has a gradient that is not finite is known from clip_grad_norm_() (or grad_norm() of all leaves that
// were unscaled, 2-norm, on the thread of unscale_) where every one of them is sharded over, or replicated on, the
// whole world; without one, step() takes an all-reduce of one number. Calls in another order than this throw
// Error(kUsage), which says what was expected. One thread at a time. After: torch.amp.GradScaler, FSDP1's
// ShardedGradScaler.
class GradScaler {
 public:
  // Throws Error(kUsage) for numbers that do not fit.
  explicit GradScaler(const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  // loss * scale, fp32 at least. Local.
  at::Tensor scale(const at::Tensor& loss);
  // In place of scale() on a rank whose loss is another's, the last stage's of a pipeline: gradients come scaled.
  // Local.
  void expect_scaled();
  // Gradients of the leaves of `module`, or of these, times 1 / scale; once between two update()s. Local.
  void unscale_(const torch::nn::Module& module);
  void unscale_(const std::vector<at::Tensor>& leaves);
  // Of the gradients without the scale, which keep it: step() multiplies with the factor as it goes. As often as is
  // wanted; the last one counts. COLLECTIVE as fsdp::grad_norm().
  GradNorm grad_norm(const std::vector<at::Tensor>& leaves, double max_norm, double norm_type = 2);
  // The same from a norm of the gradients as they are, with the scale, that was taken elsewhere of these and others:
  // Pipeline::grad_norm(). Local.
  GradNorm grad_norm_from(const at::Tensor& scaled_norm, const std::vector<at::Tensor>& leaves, double max_norm);
  // optimizer.step() with gradients that are no longer scaled, unless one of its gradients is not finite on some rank.
  // Once for each optimizer between two update()s. COLLECTIVE over the world.
  ScaledStep step(FlatOptimizer& optimizer);
  ScaledStep step(torch::optim::Optimizer& optimizer);
  // The next step's scale, once after the step()s. Local, with the same result on every rank.
  void update();
  // Instead of step() and update(): the gradients of this step were thrown away.
  void forget_step();

  double current_scale() const;
  GradScalerState state() const;
  // Throws Error(kUsage) for a scale that is not above 0 and finite, or a negative count. Between steps.
  void load(const GradScalerState& state);

 private:
  struct Step;
  std::shared_ptr<Step> step_;
};

}  // namespace fsdp
