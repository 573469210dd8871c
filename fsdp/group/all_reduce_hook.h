#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace fsdp {

// What a program does to a sum of gradients before anybody else sees it: this rank's part of a group's main grad, 1-D,
// scaled, zeros between parameters. Without what earlier backwards brought. It changes the numbers in place.
using AllReduceHook = std::function<void(const at::Tensor& sum)>;

}  // namespace fsdp
