// Tensors that may differ by the order of sums.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>

namespace fsdp::testing {

// By at most `bound` times the largest number that is expected, which counts as 1e-3 at least.
inline void expect_close(const torch::Tensor& actual, const torch::Tensor& expected, double bound,
                         const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) return;
  const double size = std::max(expected.abs().max().item<double>(), 1e-3);
  EXPECT_LE((actual - expected).abs().max().item<double>() / size, bound) << what;
}

// In fp64.
inline void expect_close(const torch::Tensor& actual, const torch::Tensor& expected, const std::string& what) {
  expect_close(actual, expected, 1e-12, what);
}

}  // namespace fsdp::testing
