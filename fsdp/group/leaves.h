#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace fsdp {

// The leaves of `module` as fsdp::parameters() returns them, for calls of the library itself: asking for them this way
// does not count as building an optimizer on them. A library entry: throws deferred errors.
std::vector<at::Tensor> leaves_of(const torch::nn::Module& module);

}  // namespace fsdp
