#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/mesh/mesh.h"

namespace fsdp::functional {

// How a group of tensors is cut in N.
enum class Slicing {
  kFlat,      // all flattened, joined and cut in N: a rank has whole tensors and two fragments; fewest copies
  kByTensor,  // each padded and reshaped to (N, -1), joined side by side: a rank has 1/N of every tensor
};

struct ShardedStepOptions {
  int64_t group_bytes = int64_t{32} << 20;  // tensors are joined up to this size; a larger one is a group of its own
  Slicing slicing = Slicing::kFlat;
  std::optional<at::ScalarType> reduce = {};  // gradients on the wire; unset: the tensors' dtype
  // What optimizers work on: slices and their gradients. Unset: the tensors' dtype.
  std::optional<at::ScalarType> main = {};
};

// ZeRO-2 over any list of tensors, without a module and without units: every rank keeps all tensors, and 1/N of the
// gradients and of the optimizer's state. Training:
//
//   functional::ShardedStep step(mesh, tensors, {.group_bytes = 16 << 20});
//   torch::optim::AdamW optimizer(step.slices(), 1e-3);      // or fsdp::AdamW; any elementwise optimizer
//   ...
//   loss.backward();
//   step.reduce_gradients();          // or reduce_gradients(list): groups are reduce-scattered into slices' .grad
//   step.clip_grad_norm(1.0);
//   optimizer.step();                 // on one tensor for each group; the list is not rebuilt for it
//   optimizer.zero_grad();            // of the slices: the next reduction would add to what is there
//   step.gather_updates();            // slices go to all ranks, into the tensors
//
// Tensors are dense, floating point, on one device, of any shape, also 0-dim and empty ones, distinct leaves, with
// equal values on every rank; groups never mix dtypes. The list keeps them, and the world, alive. Methods are
// COLLECTIVE over the mesh axis "shard" unless marked local; along other axes nothing is exchanged. Errors:
// Error(kUsage) names the tensor by its position in the list, or the first rank whose list or options differ. Not
// thread-safe. After: MLX's fsdp_apply_gradients (seed rows A1, A2).
class ShardedStep {
 public:
  ShardedStep(const Mesh& mesh, std::vector<at::Tensor> tensors, ShardedStepOptions options = {});
  ~ShardedStep();
  ShardedStep(ShardedStep&&) noexcept;
  ShardedStep& operator=(ShardedStep&&) noexcept;

  // Local. One 1-D leaf for each group: this rank's slice of it, in the main dtype. Padding in it is zero, and so are
  // its gradients.
  const std::vector<at::Tensor>& slices() const;
  // The mean over the ranks of each tensor's .grad goes into the slices' .grad and is added to what is there; the
  // tensors' .grad are reset. A tensor without a gradient counts as zero; a group without any on any rank keeps its
  // .grad as it is. Two groups at a time are packed or on their way.
  void reduce_gradients();
  // gradients[i] belongs to tensor i, has its sizes and may be undefined.
  void reduce_gradients(const std::vector<at::Tensor>& gradients);
  // Scales the slices' gradients so that the 2-norm over all ranks is at most max_norm; returns the norm before, 0-dim
  // fp32.
  at::Tensor clip_grad_norm(double max_norm);
  // Every rank's slices go into the tensors, in place, cast to their dtype. Autograd sees the write.
  void gather_updates();
  // Local. Bytes of slices and, from their first reduction on, of their gradients on this rank.
  int64_t slice_bytes() const;
  int64_t num_groups() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp::functional
