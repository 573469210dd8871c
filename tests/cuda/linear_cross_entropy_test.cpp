#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <vector>

#include "kernels/operators/cross_entropy.h"
#include "kernels/products/linear.h"
#include "tests/cuda/as_on_cpu.h"

namespace fsdp::kernels::linear_cross_entropy_test {
namespace {

TEST(CudaLinearCrossEntropy, EqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const LossTerms& terms : {LossTerms{}, LossTerms{1e-3, 0.2}}) {
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
        for (const auto& [rows, vocab] : std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {5, 37}, {300, 1000}}) {
          at::Tensor targets = at::randint(0, vocab, {rows}, at::kLong);
          if (rows > 2) targets[1] = kIgnoreIndex;
          // Of one row and two entries: 1 - p near p = 1, where a rounding of p is a large part of the gradient.
          const double tolerance = vocab == 2 ? 2e-5 : 0;
          expect_as_on_cpu(
              [&](const Inputs& in) { return linear_cross_entropy(in[0], in[1], in[2], reduction, terms); },
              {values({rows, 16}, dtype), values({vocab, 16}, dtype) * 0.3, targets},
              std::max(tolerance, tolerance_of(dtype)), c10::str(dtype, ", ", rows, " x ", vocab));
        }
      }
    }
  }
}

// Chunks of which the last is not whole; more of them than a sum in bf16 is used for.
TEST(CudaLinearCrossEntropy, ChunksEqualTheWhole) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [rows, vocab] : std::vector<std::pair<int64_t, int64_t>>{{1500, 262144}, {2500, 1 << 21}}) {
      const at::Tensor targets = at::randint(0, vocab, {rows}, at::kLong).to(kGpu);
      targets[3] = kIgnoreIndex;
      const at::Tensor x = values({rows, 8}, dtype).to(kGpu).requires_grad_();
      const at::Tensor weight = (values({vocab, 8}, dtype) * 0.3).to(kGpu).requires_grad_();
      const at::Tensor loss = linear_cross_entropy(x, weight, targets);
      loss.backward();
      // The same, a few rows at a time.
      const at::Tensor grad_weight = at::zeros({vocab, 8}, at::TensorOptions(kGpu).dtype(at::kFloat));
      const at::Tensor grad_x = at::empty_like(x);
      double total = 0;
      for (int64_t begin = 0; begin < rows; begin += 100) {
        const at::Tensor part = x.detach().narrow(0, begin, 100).requires_grad_();
        const at::Tensor leaf = weight.detach().requires_grad_();
        const at::Tensor sum =
            cross_entropy(kernels::linear(part, leaf), targets.narrow(0, begin, 100), Reduction::kSum) / (rows - 1);
        sum.backward();
        total += sum.item<double>();
        grad_weight.add_(leaf.grad());
        grad_x.narrow(0, begin, 100).copy_(part.grad());
      }
      const std::string label = c10::str(dtype, ", ", rows, " x ", vocab);
      EXPECT_NEAR(loss.item<double>(), total, 1e-3 * total) << label;
      EXPECT_LE(relative_difference(x.grad(), grad_x), tolerance_of(dtype)) << label;
      const at::Tensor difference = (weight.grad() - grad_weight).norm() / grad_weight.norm();
      EXPECT_LE(difference.item<double>(), dtype == at::kFloat ? 1e-5 : 1e-2) << label;
    }
  }
}

TEST(CudaLinearCrossEntropy, GivesOnlyTheGradientsAskedForAndOnce) {
  FSDP_NEEDS_GPU();
  const at::Tensor targets = at::zeros({3}, at::TensorOptions(kGpu).dtype(at::kLong));
  const at::Tensor x = at::randn({3, 4}, kGpu), weight = at::randn({5, 4}, kGpu).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(x, weight, targets);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(weight.grad().defined());
  EXPECT_THROW(loss.backward(), c10::Error);
  const at::Tensor leaf = x.detach().requires_grad_();
  linear_cross_entropy(leaf, weight.detach(), targets).backward();
  EXPECT_TRUE(leaf.grad().defined());
  const at::NoGradGuard no_grad;
  EXPECT_NEAR(linear_cross_entropy(x, weight, targets).item<float>(), loss.item<float>(), 1e-5);
}

TEST(CudaLinearCrossEntropy, WithoutValidTargetsIsZero) {
  FSDP_NEEDS_GPU();
  const at::TensorOptions ids = at::TensorOptions(kGpu).dtype(at::kLong);
  const at::Tensor x = at::ones({3, 4}, kGpu).requires_grad_(), weight = at::ones({5, 4}, kGpu).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(x, weight, at::full({3}, kIgnoreIndex, ids));
  loss.backward();
  EXPECT_EQ(loss.item<float>(), 0);
  EXPECT_EQ(weight.grad().count_nonzero().item<int64_t>(), 0);
  linear_cross_entropy(x.narrow(0, 0, 0), weight, at::empty({0}, ids)).backward();
  EXPECT_EQ(weight.grad().count_nonzero().item<int64_t>(), 0);
  EXPECT_TRUE(std::isnan(linear_cross_entropy(x, weight, at::full({3}, 5, ids)).item<float>()));
}

// Beside the two gradients, the logits of one chunk and little else.
TEST(CudaLinearCrossEntropy, TakesLessThan600Megabytes) {
  FSDP_NEEDS_GPU();
  using c10::cuda::CUDACachingAllocator::getDeviceStats;
  const at::TensorOptions bf16 = at::TensorOptions(kGpu).dtype(at::kBFloat16);
  const at::Tensor x = at::randn({8192, 2048}, bf16).requires_grad_();
  const at::Tensor weight = (at::randn({128256, 2048}, bf16) * 0.02).requires_grad_();
  const at::Tensor targets = at::randint(0, 128256, {8192}, at::TensorOptions(kGpu).dtype(at::kLong));
  linear_cross_entropy(x.narrow(0, 0, 128), weight, targets.narrow(0, 0, 128)).backward();  // cuBLAS takes its own
  x.mutable_grad().reset();
  weight.mutable_grad().reset();
  const int64_t before = getDeviceStats(0).allocated_bytes[0].current;
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  linear_cross_entropy(x, weight, targets).backward();
  const int64_t peak = getDeviceStats(0).allocated_bytes[0].peak;
  EXPECT_LE(peak - before - static_cast<int64_t>(x.nbytes() + weight.nbytes()), 600'000'000);
}

}  // namespace
}  // namespace fsdp::kernels::linear_cross_entropy_test
