#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp {

// What an optimizer multiplies gradients with in one step: a number, and a tensor where a device is to read it.
struct GradientFactor {
  double number = 1;
  at::Tensor tensor;  // undefined: 1

  // Of a tensor as grad_norm() returns it: one number. One on the CPU becomes a number. Throws Error(kUsage) for
  // others, naming `optimizer`.
  static GradientFactor of(const at::Tensor& tensor, const char* optimizer);
  // What a kernel that works on `weight` reads. Waits for the tensor's device where `weight` is on another.
  at::Tensor on_device_of(const at::Tensor& weight) const;
  // The gradient itself where there is nothing to multiply.
  at::Tensor times(const at::Tensor& gradient) const;
};

}  // namespace fsdp
