#include <ATen/ATen.h>
#include <torch/library.h>

#include "kernels/cuda/tensors.h"
#include "kernels/products/fp8_tensors.h"
#include "kernels/products/linear_parts.h"

namespace fsdp::kernels::cuda {
namespace {

// One product of bf16 or fp32 operands whose sums stay in fp32 on their way into the target.
void fill_weight_gradient_cuda(const at::Tensor& target_NK, const at::Tensor& grad_TN, const at::Tensor& x_TK,
                               double scale, bool adds) {
  constexpr auto kOp = "fill_weight_gradient";
  check_devices(kOp, {grad_TN, x_TK, target_NK});
  TORCH_CHECK(target_NK.scalar_type() == at::kFloat, "[", kOp, "] target: got ", target_NK.scalar_type(),
              ", expected float32");
  const OnDeviceOf device(grad_TN);
  at::Tensor target = target_NK;
  if (grad_TN.size(0) == 0) {
    if (!adds) target.zero_();
    return;
  }
  const double beta = adds ? 1 : 0;
  if (grad_TN.scalar_type() == at::kFloat)
    at::addmm_out(target, target, grad_TN.t(), x_TK, beta, scale);
  else
    at::addmm_out(target, target, grad_TN.t(), x_TK, at::kFloat, beta, scale);
}

int compute_capability(const c10::Device& device) {
  int major = 0, minor = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index()));
  return 10 * major + minor;
}

at::Tensor fp8_linear_cuda(const at::Tensor& x, const at::Tensor& weight, int64_t recipe) {
  check_devices("fp8_linear", {x, weight});
  check_fp8_capability(compute_capability(x.device()));
  const OnDeviceOf device(x);
  return fp8_product_on_device(x, weight, recipe);
}

}  // namespace

TORCH_LIBRARY_IMPL(fsdp, CUDA, library) {
  library.impl("linear", product);
  library.impl("fp8_linear", fp8_linear_cuda);
  library.impl("fused_linear", fused_product);
  library.impl("fill_weight_gradient", fill_weight_gradient_cuda);
}

}  // namespace fsdp::kernels::cuda
