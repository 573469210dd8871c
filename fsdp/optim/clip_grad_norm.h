#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp {

// Scales the main grads so that their 2-norm over all ranks and parameters is at most `max_norm`:
// every gradient times min(1, max_norm / (norm + 1e-6)). COLLECTIVE over the shard axis; one all-reduce of one number.
// Returns the norm before clipping, a 0-dim fp32 tensor on the gradients' device with equal bits on every rank; the
// host waits for no device. A tied weight counts once. After: torch.nn.utils.clip_grad_norm_.
at::Tensor clip_grad_norm_(const torch::nn::Module& module, double max_norm);

// The same for an explicit list of leaves (as fsdp::parameters() returns them).
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& leaves, double max_norm);

// 0-dim fp32 tensors on the device of the gradients, so that what they clip never waits for the host.
struct GradNorm {
  at::Tensor norm;    // equal bits on every rank
  at::Tensor factor;  // what clip_grad_norm_() would multiply gradients with; 1 if the norm is NaN

  // The norm as a number; waits for its device.
  float value() const;
};

// The same numbers, and gradients as they are: AdamW::step(factor) saves the pass over them. COLLECTIVE likewise.
GradNorm grad_norm(const std::vector<at::Tensor>& leaves, double max_norm);

}  // namespace fsdp
