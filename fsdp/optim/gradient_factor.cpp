#include "fsdp/optim/gradient_factor.h"

#include <ATen/ATen.h>

#include "fsdp/base/backstage.h"
#include "fsdp/base/check.h"

namespace fsdp {

GradientFactor GradientFactor::of(const at::Tensor& tensor, const char* optimizer) {
  FSDP_CHECK(tensor.defined() && tensor.numel() == 1 && at::isFloatingType(tensor.scalar_type()), "[", optimizer,
             "] gradient_factor: expected a tensor of one floating-point number. Give it GradNorm::factor, or a plain "
             "number.");
  if (!tensor.is_cpu()) return {1, tensor};
  const Backstage backstage;
  return {tensor.item<double>(), {}};
}

at::Tensor GradientFactor::on_device_of(const at::Tensor& weight) const {
  return tensor.defined() ? tensor.to(weight.device()) : tensor;
}

at::Tensor GradientFactor::times(const at::Tensor& gradient) const {
  if (tensor.defined()) return gradient * on_device_of(gradient).to(gradient.scalar_type());
  return number == 1 ? gradient : gradient * number;
}

}  // namespace fsdp
