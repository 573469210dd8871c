#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace fsdp {

using MakeTensor = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;
using UseTensor = std::function<std::vector<at::Tensor>(const at::Tensor& made)>;

// use(make(inputs)) without keeping what `make` returned: its memory is given back when `use` has run, and `make` runs
// again when the first gradient of what `use` returned arrives. `use` itself runs once: its matrix products are not
// paid for twice, as they would be in a region of recompute(). For cheap results that something expensive reads: a
// norm before projections, an activation before the projection that follows it.
//   `make` returns new memory that it and its inputs do not hold, and computes the same both times, as recompute()
//   asks: it may capture leaves, no tensors that were computed with gradients. It may be a norm that reads a sharded
//   weight.
//   `use` may keep the made tensor for its backward in any way; the tensors that it returns share no memory with it. It
//   runs with gradients as usual, and may capture what it likes.
// A backward with create_graph, or one for the gradients of certain tensors that `inputs` depend on (autograd::grad,
// backward with inputs), throws Error(kUsage). One device. Local. Without gradient mode it is a plain call. After:
// Megatron-Core's recomputation without output.
std::vector<at::Tensor> recompute_input(const MakeTensor& make, const std::vector<at::Tensor>& inputs,
                                        const UseTensor& use);

}  // namespace fsdp
