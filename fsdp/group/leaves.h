#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp {

// The leaves of `module` as fsdp::parameters() returns them, for calls of the library itself: asking for them this way
// does not count as building an optimizer on them. Local.
std::vector<at::Tensor> leaves_of(const torch::nn::Module& module);

// A program called into the library with these leaves: see GroupOwner::on_library_entry().
void enter_library(const std::vector<at::Tensor>& leaves);

}  // namespace fsdp
