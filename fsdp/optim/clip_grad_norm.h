#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace fsdp::comm {
class Comm;
}  // namespace fsdp::comm
namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp {

// Scales the main grads so that their norm over all ranks and parameters is at most `max_norm`:
// every gradient times min(1, max_norm / (norm + 1e-6)). `norm_type`: 2 has kernels of its own; any other p > 0;
// infinity is the largest absolute value. COLLECTIVE over the shard axis; one all-reduce of one number. Returns the
// norm before clipping, a 0-dim tensor, fp32 (fp64 with fp64 gradients), on the gradients' device with equal bits on
// every rank; the host waits for no device. A tied weight counts once, and of ignored parameters the mean over the
// ranks of their |gradient|^p. After: torch.nn.utils.clip_grad_norm_.
at::Tensor clip_grad_norm_(const torch::nn::Module& module, double max_norm, double norm_type = 2);

// The same for an explicit list of leaves (as fsdp::parameters() returns them). `others`: ranks that have other
// parameters, whose gradients count too; none: there are no others.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& leaves, double max_norm, double norm_type = 2,
                           const std::shared_ptr<comm::Comm>& others = nullptr);

// 0-dim tensors, fp32 (fp64 with fp64 gradients), on the device of the gradients, so that what they clip never waits
// for the host.
struct GradNorm {
  at::Tensor norm;    // equal bits on every rank
  at::Tensor factor;  // what clip_grad_norm_() would multiply gradients with; 1 if the norm is NaN

  // The norm as a number; waits for its device.
  float value() const;
};

// The same numbers, and gradients as they are: AdamW::step(factor) saves the pass over them. COLLECTIVE likewise.
GradNorm grad_norm(const std::vector<at::Tensor>& leaves, double max_norm, double norm_type = 2,
                   const std::shared_ptr<comm::Comm>& others = nullptr);

}  // namespace fsdp
