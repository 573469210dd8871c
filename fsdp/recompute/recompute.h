#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/base/tensor_function.h"
#include "fsdp/recompute/host_inputs.h"

namespace fsdp {

// Runs `function` without keeping what its backward needs; the backward runs it again. The second run sees the random
// numbers, the autocast state and the inputs of the first (of the CPU and of the GPUs that inputs are on), so it must
// compute the same (no effects that add up, such as BatchNorm's statistics). Regions may be nested. Sharded weights
// that it reads are gathered once for second run and backward together. What `function` captures may be leaves
// (parameters), but no tensors that were computed with gradients: pass those as inputs. Undefined tensors pass through.
// `rest`: where inputs are between forward and backward; null: where they were.
// A backward with create_graph, or one for the gradients of certain tensors only (torch::autograd::grad, backward with
// inputs), throws Error(kUsage).
// Local. Without gradient mode it is a plain call. After: Chen et al. 2016; torch.utils.checkpoint(use_reentrant=True).
std::vector<at::Tensor> recompute(const TensorListFunction& function, const std::vector<at::Tensor>& inputs,
                                  const std::shared_ptr<HostInputs>& rest = nullptr);
at::Tensor recompute(const TensorFunction& function, const at::Tensor& input,
                     const std::shared_ptr<HostInputs>& rest = nullptr);

// blocks[0], blocks[1], ... one after the other, where every k-th (blocks 0, k, 2k, ...) is a region of its own: k = 1
// recomputes all, k = 0 none.
at::Tensor recompute_every(int64_t k, const std::vector<TensorFunction>& blocks, const at::Tensor& input);

}  // namespace fsdp
