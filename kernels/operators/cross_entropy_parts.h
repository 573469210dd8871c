// What operators that contain a cross entropy share.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace fsdp::kernels {

// fsdp::cross_entropy_forward(logits_NV, targets_N, mean, z_loss, label_smoothing): loss, log-sum-exp [N] of each row.
using CrossEntropyForward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, bool, double,
                                                               double);

// fsdp::cross_entropy_backward(grad, logits_NV, targets_N, log_sum_exp_N, mean, z_loss, label_smoothing): gradient of
// the logits.
using CrossEntropyBackward = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                        bool, double, double);

}  // namespace fsdp::kernels
