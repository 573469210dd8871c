#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/group/parameters.h"

namespace fsdp {

class FlatParameters;

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
// weight, moments and the low-precision model weight. Works on fsdp::parameters() and on plain fp32 leaves. Local.
// Leaves without .grad are skipped, as in torch::optim. After: Loshchilov & Hutter 2019; torch.optim.AdamW.
class AdamW {
 public:
  AdamW(std::vector<at::Tensor> parameters, AdamWOptions options);
  explicit AdamW(std::vector<AdamWGroup> groups);
  // fsdp::decay_groups(): options.weight_decay is replaced by each group's.
  AdamW(std::vector<DecayGroup> groups, AdamWOptions options);
  ~AdamW();
  AdamW(AdamW&&) noexcept;
  AdamW& operator=(AdamW&&) noexcept;

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
  AdamWOptions& options(size_t group);
  size_t num_groups() const;
  int64_t num_steps() const;
  // Bytes of optimizer state on this rank.
  int64_t state_bytes() const;
  // For checkpoints.
  FlatParameters& flat_parameters();
  void set_num_steps(int64_t steps);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp
