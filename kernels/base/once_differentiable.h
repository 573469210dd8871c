// What operators without second derivatives return from their backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fsdp::kernels {

// `results`, as the backward of operator `op` made them of `grads`; to be called there, last. A backward that records a
// graph (create_graph) would take them for constants, and what depends on them in that graph would be lost without a
// word. There they come back with a node that throws as soon as somebody differentiates them by anything they may
// depend on. `instead`: the functions of LibTorch that have second derivatives. Undefined results stay so.
std::vector<at::Tensor> once_differentiable(const char* op, const char* instead, const std::vector<at::Tensor>& grads,
                                            std::vector<at::Tensor> results);

}  // namespace fsdp::kernels
