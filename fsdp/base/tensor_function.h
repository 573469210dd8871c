#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace fsdp {

// Part of a model, as recomputation and graphs take it.
using TensorFunction = std::function<at::Tensor(const at::Tensor& input)>;
using TensorListFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

}  // namespace fsdp
