// Comparison of a kernel with the same maths written in ATen operators.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace fsdp::kernels {

using Inputs = std::vector<at::Tensor>;
using Differentiable = std::function<at::Tensor(const Inputs&)>;

// Largest difference relative to the largest entry of `expected` (or to 0.01 if that is smaller).
inline double relative_difference(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_EQ(actual.sizes(), expected.sizes());
  if (expected.numel() == 0) return 0;
  const at::Tensor a = actual.to(at::kDouble), e = expected.to(at::kDouble);
  return ((a - e).abs().max() / e.abs().max().clamp_min(1e-2)).item<double>();
}

// Calls `kernel` and `reference` on fresh leaves with the values of `inputs`, backpropagates one fixed random gradient
// through both, and compares the result and every gradient.
inline void expect_same(const Differentiable& kernel, const Differentiable& reference, const Inputs& inputs,
                        double tolerance, const std::string& label) {
  const auto run = [&](const Differentiable& function) {
    Inputs leaves;
    for (const at::Tensor& input : inputs)
      leaves.push_back(input.is_floating_point() ? input.detach().requires_grad_() : input);
    const at::Tensor y = function(leaves);
    at::Tensor grad = at::ones_like(y);
    if (y.dim() > 0 && y.numel() > 0)
      grad = at::linspace(-1, 1, y.numel(), at::kFloat).cos().view(y.sizes()).to(y.dtype());
    y.backward(grad);
    Inputs results = {y.detach()};
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].is_floating_point()) continue;
      results.push_back(leaves[i].grad().defined() ? leaves[i].grad() : at::zeros_like(inputs[i]));
    }
    return results;
  };
  const Inputs actual = run(kernel), expected = run(reference);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << label << ", result " << i;
    EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance) << label << ", result " << i;
  }
}

// fp32: the order of sums. bf16: a rounding or two, of 2^-8 each.
inline double tolerance_of(at::ScalarType dtype) { return dtype == at::kFloat ? 4e-6 : 1.2e-2; }

// Normal values from the global generator, whose seed the test sets.
inline at::Tensor values(at::IntArrayRef sizes, at::ScalarType dtype) { return at::randn(sizes).to(dtype); }

// What products of few and of many rows take.
struct ProductTypes {
  at::ScalarType x, weight;
};
inline const std::vector<ProductTypes> kProductTypes = {
    {at::kFloat, at::kFloat}, {at::kBFloat16, at::kBFloat16}, {at::kFloat, at::kBFloat16}};

}  // namespace fsdp::kernels
