#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace fsdp {

class FlatParameters;
class UpdateRule;

// What all optimizers over flat shards have in common: AdamW, SGD, Muon, Lion. They work on fsdp::parameters() and on
// plain fp32 leaves, and a leaf without .grad is skipped, as in torch::optim. Local.
class FlatOptimizer {
 public:
  ~FlatOptimizer();
  FlatOptimizer(FlatOptimizer&&) noexcept;
  FlatOptimizer& operator=(FlatOptimizer&&) noexcept;

  // With gradients times `gradient_factor`, which .grad keeps without: grad_norm() gives the one that clips.
  // Throws Error(kUsage) if a gradient has another dtype than fp32 or another size than its parameter.
  void step(double gradient_factor = 1);
  // The same with a factor that a device may still be computing: fp32, one number; the host does not wait for it.
  void step(const at::Tensor& gradient_factor);
  // From now on the parameters of a unit are updated in the backward, as soon as their gradients are reduced (in the
  // last microbatch), and the gradients' memory is returned at once: no rank holds main grads of more than the units on
  // their way. A parameter that got no gradient counts as having one of zeros. Clipping by the norm of all gradients is
  // then impossible and refused; step() only updates what is not sharded. Lasts as long as the optimizer. Throws
  // Error(kUsage) if another optimizer does so for a parameter of the same unit. After: torch.autograd.graph
  // post-accumulate hooks, "optimizer step in backward".
  void step_in_backward();
  void set_lr(double lr);  // of all groups
  void set_lr(size_t group, double lr);
  double lr(size_t group) const;
  size_t num_groups() const;
  int64_t num_steps() const;
  // Bytes of optimizer state on this rank.
  int64_t state_bytes() const;
  // For checkpoints.
  FlatParameters& flat_parameters();
  void set_num_steps(int64_t steps);
  // Throws Error(kUsage) while the model has other weights than those that train, such as ScheduleFreeAdamW's average.
  void check_trains(const char* caller) const;

 protected:
  explicit FlatOptimizer(std::unique_ptr<UpdateRule> rule);
  UpdateRule& rule() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp
