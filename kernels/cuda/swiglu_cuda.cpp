#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/base/dense_rows.h"
#include "kernels/base/input_checks.h"
#include "kernels/cuda/tensors.h"

namespace fsdp::kernels::cuda {
namespace {

at::Tensor swiglu_forward(const at::Tensor& gate, const at::Tensor& up) {
  constexpr auto kOp = "swiglu";
  check_swiglu(gate, up);
  check_devices(kOp, {gate, up});
  const OnDeviceOf device(gate);
  const at::Tensor g = with_dense_rows(gate), u = with_dense_rows(up);
  at::Tensor y = at::empty(g.sizes(), g.options());
  const Rows rows = rows_of({g, u});
  const SwiGluForward arrays{g.const_data_ptr(), u.const_data_ptr(), y.mutable_data_ptr(), element_of(kOp, g),
                             rows.count,         rows.width,         row_stride(g, rows),  row_stride(u, rows)};
  C10_CUDA_CHECK(launch_swiglu_forward(arrays, device.stream()));
  return y;
}

std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad_y, const at::Tensor& gate,
                                                   const at::Tensor& up) {
  constexpr auto kOp = "swiglu_backward";
  check_swiglu(gate, up);
  check_devices(kOp, {gate, grad_y, up});
  const OnDeviceOf device(gate);
  const at::Tensor grad = grad_y.contiguous(), g = with_dense_rows(gate), u = with_dense_rows(up);
  auto [grad_gate, grad_up] = empty_beside_each_other(g, u);
  const Rows rows = rows_of({g, u, grad_gate, grad_up});
  const SwiGluBackward arrays{grad.const_data_ptr(),
                              g.const_data_ptr(),
                              u.const_data_ptr(),
                              grad_gate.mutable_data_ptr(),
                              grad_up.mutable_data_ptr(),
                              element_of(kOp, g),
                              rows.count,
                              rows.width,
                              row_stride(g, rows),
                              row_stride(u, rows),
                              row_stride(grad_gate, rows)};
  C10_CUDA_CHECK(launch_swiglu_backward(arrays, device.stream()));
  return {grad_gate, grad_up};
}

}  // namespace

TORCH_LIBRARY_IMPL(fsdp, CUDA, library) {
  library.impl("swiglu_forward", swiglu_forward);
  library.impl("swiglu_backward", swiglu_backward);
}

}  // namespace fsdp::kernels::cuda
