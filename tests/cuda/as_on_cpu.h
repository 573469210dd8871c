// Comparison of an operator on a GPU with the same operator on the CPU.
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/kernels/compare.h"

// The first line of a test that runs kernels.
#define FSDP_NEEDS_GPU() \
  if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a GPU, and this machine has none"

namespace fsdp::kernels {

inline const c10::Device kGpu(c10::DeviceType::CUDA, 0);

// The result of `function` on leaves with the values of `inputs` on `device`, and the gradients of those that have
// some, for one fixed gradient of the result; all on the CPU.
inline Inputs run_on(c10::Device device, const Differentiable& function, const Inputs& inputs) {
  Inputs leaves;
  for (const at::Tensor& input : inputs) {
    const at::Tensor leaf = input.detach().to(device);
    leaves.push_back(leaf.is_floating_point() ? leaf.requires_grad_() : leaf);
  }
  const at::Tensor y = function(leaves);
  EXPECT_EQ(y.device(), device);
  at::Tensor grad = at::linspace(-1, 1, y.numel(), at::kFloat).cos().view(y.sizes());
  y.backward(grad.to(y.scalar_type()).to(device));
  Inputs results = {y.detach().cpu()};
  for (const at::Tensor& leaf : leaves) {
    if (!leaf.requires_grad()) continue;
    results.push_back((leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf)).cpu());
  }
  return results;
}

// That the GPU gives what the CPU gives, within `tolerance` of relative_difference(), and the same bits twice.
inline void expect_as_on_cpu(const Differentiable& function, const Inputs& inputs, double tolerance,
                             const std::string& label) {
  const Inputs expected = run_on(at::kCPU, function, inputs);
  const Inputs actual = run_on(kGpu, function, inputs), again = run_on(kGpu, function, inputs);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << label << ", result " << i;
    EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance) << label << ", result " << i;
    EXPECT_TRUE(at::equal(actual[i], again[i])) << label << ", result " << i << ": other bits the second time";
  }
}

// `x` [n + 1] without its first element, as [sizes]: dense, but at no multiple of 16 bytes.
inline at::Tensor shifted(const at::Tensor& x, at::IntArrayRef sizes) {
  return x.narrow(0, 1, x.numel() - 1).view(sizes);
}

// While it lives, whatever makes the host wait for the device is an error.
class NoWaits {
 public:
  NoWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
  NoWaits(const NoWaits&) = delete;
  NoWaits& operator=(const NoWaits&) = delete;
};

}  // namespace fsdp::kernels
