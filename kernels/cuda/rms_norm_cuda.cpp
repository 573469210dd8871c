#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "kernels/base/input_checks.h"
#include "kernels/cuda/tensors.h"

namespace fsdp::kernels::cuda {
namespace {

at::Tensor contiguous_or_none(const at::Tensor& x) { return x.defined() ? x.contiguous() : x; }

const void* pointer_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

// {sum, y, rstd}; without a residual sum is undefined.
std::tuple<at::Tensor, at::Tensor, at::Tensor> run_forward(const at::Tensor& x, const at::Tensor& residual,
                                                           const at::Tensor& weight, double eps) {
  constexpr auto kOp = "rms_norm";
  check_rms_norm(x, weight);
  check_devices(kOp, {x, weight});
  const OnDeviceOf device(x);
  const at::Tensor input = x.contiguous(), scale = weight.contiguous(), other = contiguous_or_none(residual);
  const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  at::Tensor sum, y = at::empty(input.sizes(), input.options());
  if (other.defined()) sum = at::empty(input.sizes(), input.options());
  at::Tensor rstd = at::empty({rows}, input.options().dtype(at::kFloat));
  const RmsNormForward arrays{input.const_data_ptr(),
                              pointer_or_null(other),
                              scale.const_data_ptr(),
                              sum.defined() ? sum.mutable_data_ptr() : nullptr,
                              y.mutable_data_ptr(),
                              rstd.mutable_data_ptr<float>(),
                              element_of(kOp, x),
                              rows,
                              width,
                              static_cast<float>(eps)};
  C10_CUDA_CHECK(launch_rms_norm_forward(arrays, device.stream()));
  return {sum, y, rstd};
}

// `grad_sum` may be undefined.
std::tuple<at::Tensor, at::Tensor> run_backward(const at::Tensor& grad_y, const at::Tensor& grad_sum,
                                                const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd) {
  constexpr auto kOp = "rms_norm_backward";
  check_rms_norm(x, weight);
  check_devices(kOp, {grad_y, x, weight, rstd});
  const OnDeviceOf device(x);
  const at::Tensor grad = grad_y.contiguous(), input = x.contiguous(), scale = weight.contiguous();
  const at::Tensor more = contiguous_or_none(grad_sum);
  const int64_t width = x.size(-1), rows = rstd.numel();
  at::Tensor grad_x = at::empty(input.sizes(), input.options()), grad_weight = at::empty({width}, scale.options());
  at::Tensor partials = at::empty({num_rms_norm_partials(rows), width}, input.options().dtype(at::kFloat));
  const RmsNormBackward arrays{grad.const_data_ptr(),
                               pointer_or_null(more),
                               input.const_data_ptr(),
                               scale.const_data_ptr(),
                               rstd.const_data_ptr<float>(),
                               grad_x.mutable_data_ptr(),
                               grad_weight.mutable_data_ptr(),
                               partials.mutable_data_ptr<float>(),
                               element_of(kOp, x),
                               rows,
                               width};
  C10_CUDA_CHECK(launch_rms_norm_backward(arrays, device.stream()));
  return {grad_x, grad_weight};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  auto [sum, y, rstd] = run_forward(x, {}, weight, eps);
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& x,
                                                     const at::Tensor& weight, const at::Tensor& rstd) {
  return run_backward(grad_y, {}, x, weight, rstd);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward(const at::Tensor& x, const at::Tensor& residual,
                                                                    const at::Tensor& weight, double eps) {
  check_residual(x, residual);
  check_devices("add_rms_norm", {x, residual});
  return run_forward(x, residual, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad_y,
                                                         const std::optional<at::Tensor>& grad_sum,
                                                         const at::Tensor& sum, const at::Tensor& weight,
                                                         const at::Tensor& rstd) {
  return run_backward(grad_y, grad_sum.value_or(at::Tensor()), sum, weight, rstd);
}

at::Tensor rms_norm_without_gradient(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return std::get<0>(rms_norm_forward(x, weight, eps));
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm_without_gradient(const at::Tensor& x, const at::Tensor& residual,
                                                                 const at::Tensor& weight, double eps) {
  auto [sum, y, rstd] = add_rms_norm_forward(x, residual, weight, eps);
  return {sum, y};
}

}  // namespace

TORCH_LIBRARY_IMPL(fsdp, CUDA, library) {
  library.impl("rms_norm", rms_norm_without_gradient);
  library.impl("rms_norm_forward", rms_norm_forward);
  library.impl("rms_norm_backward", rms_norm_backward);
  library.impl("add_rms_norm", add_rms_norm_without_gradient);
  library.impl("add_rms_norm_forward", add_rms_norm_forward);
  library.impl("add_rms_norm_backward", add_rms_norm_backward);
}

}  // namespace fsdp::kernels::cuda
