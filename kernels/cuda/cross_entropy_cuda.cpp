#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/base/input_checks.h"
#include "kernels/cuda/tensors.h"
#include "kernels/operators/cross_entropy.h"

namespace fsdp::kernels::cuda {
namespace {

LossRows loss_rows(const char* op, const at::Tensor& logits_NV, const at::Tensor& targets_N, const LossTerms& terms) {
  return {logits_NV.const_data_ptr(), targets_N.const_data_ptr<int64_t>(),
          element_of(op, logits_NV),  logits_NV.size(0),
          logits_NV.size(1),          terms.z_loss,
          terms.label_smoothing};
}

Divisor divisor_of(bool mean) { return mean ? Divisor::kValidTargets : Divisor::kOne; }

std::tuple<at::Tensor, at::Tensor> cross_entropy_forward(const at::Tensor& logits_NV, const at::Tensor& targets_N,
                                                         bool mean, double z_loss, double label_smoothing) {
  constexpr auto kOp = "cross_entropy";
  const LossTerms terms{z_loss, label_smoothing};
  check_cross_entropy(logits_NV, targets_N, terms);
  check_devices(kOp, {logits_NV, targets_N});
  const OnDeviceOf device(logits_NV);
  const at::Tensor logits = logits_NV.contiguous(), targets = targets_N.contiguous();
  const int64_t rows = logits.size(0);
  at::Tensor normaliser = at::empty({rows}, logits.options().dtype(at::kFloat));
  at::Tensor losses = at::empty({rows}, logits.options().dtype(at::kDouble));
  at::Tensor loss = at::empty({}, logits.options().dtype(at::kFloat));
  const LossRows arrays = loss_rows(kOp, logits, targets, terms);
  C10_CUDA_CHECK(launch_row_losses(arrays, losses.mutable_data_ptr<double>(), normaliser.mutable_data_ptr<float>(),
                                   device.stream()));
  C10_CUDA_CHECK(launch_loss_sum(losses.const_data_ptr<double>(), arrays.targets, rows, divisor_of(mean),
                                 loss.mutable_data_ptr<float>(), device.stream()));
  return {loss, normaliser};
}

at::Tensor cross_entropy_backward(const at::Tensor& grad_loss, const at::Tensor& logits_NV, const at::Tensor& targets_N,
                                  const at::Tensor& normaliser, bool mean, double z_loss, double label_smoothing) {
  constexpr auto kOp = "cross_entropy_backward";
  check_devices(kOp, {logits_NV, grad_loss, targets_N, normaliser});
  const OnDeviceOf device(logits_NV);
  const at::Tensor logits = logits_NV.contiguous(), targets = targets_N.contiguous();
  const at::Tensor grad_of_loss = grad_loss.to(at::kFloat).contiguous();
  at::Tensor scale = at::empty({}, logits.options().dtype(at::kFloat));
  at::Tensor grad = at::empty(logits.sizes(), logits.options());
  const LossRows arrays = loss_rows(kOp, logits, targets, {z_loss, label_smoothing});
  C10_CUDA_CHECK(launch_loss_scale(grad_of_loss.const_data_ptr<float>(), arrays.targets, arrays.rows, divisor_of(mean),
                                   scale.mutable_data_ptr<float>(), device.stream()));
  C10_CUDA_CHECK(launch_row_gradients(arrays, normaliser.const_data_ptr<float>(), scale.const_data_ptr<float>(),
                                      grad.mutable_data_ptr(), device.stream()));
  return grad;
}

}  // namespace

TORCH_LIBRARY_IMPL(fsdp, CUDA, library) {
  library.impl("cross_entropy_forward", cross_entropy_forward);
  library.impl("cross_entropy_backward", cross_entropy_backward);
}

}  // namespace fsdp::kernels::cuda
