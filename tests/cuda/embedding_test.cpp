#include "kernels/operators/embedding.h"

#include "tests/cuda/as_on_cpu.h"

namespace fsdp::kernels::embedding_test {
namespace {

TEST(CudaEmbedding, EqualsCpu) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{1}, {40}, {3, 7}, {5000}, {0}, {2, 0}}) {
      for (const int64_t width : {1, 16, 37, 2048}) {
        const at::Tensor ids = at::randint(0, 50, shape, at::kLong);
        // The CPU sums equal ids of 16 bits in 16 bits: hundreds of them differ by more than a rounding.
        const bool has_long_sums = dtype != at::kFloat && ids.numel() > 1000;
        expect_as_on_cpu([](const Inputs& in) { return kernels::embedding(in[0], in[1]); },
                         {values({50, width}, dtype), ids}, has_long_sums ? 5e-2 : tolerance_of(dtype),
                         c10::str(dtype, " ", shape, " of ", width));
      }
    }
  }
}

TEST(CudaEmbedding, TakesViewsAndOneIdOverAndOver) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor ids = at::full({3, 11}, 4, at::kLong);
    expect_as_on_cpu(
        [](const Inputs& in) {
          return kernels::embedding(shifted(in[0], {9, 40}), in[1].transpose(0, 1));
        },
        {values({361}, dtype), ids}, dtype == at::kFloat ? 4e-6 : 3e-2, c10::str(dtype));
  }
}

// Runs of equal ids that are longer than what is on its way at a time, of all lengths around powers of two.
TEST(CudaEmbedding, RunsOfEqualIdsAreAddedUp) {
  FSDP_NEEDS_GPU();
  torch::manual_seed(3);
  std::vector<int64_t> ids;
  for (const int64_t length : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000}) {
    for (int64_t i = 0; i < length; ++i) ids.push_back(length % 97);
  }
  const at::Tensor shuffled =
      at::tensor(ids, at::kLong).index_select(0, at::randperm(static_cast<int64_t>(ids.size())));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {5, 64}) {
      const at::Tensor weight = values({97, width}, dtype), grad = values({shuffled.numel(), width}, dtype);
      const at::Tensor leaf = weight.to(kGpu).requires_grad_();
      kernels::embedding(leaf, shuffled.to(kGpu)).backward(grad.to(kGpu));
      const at::Tensor expected =
          at::zeros({97, width}, at::kDouble).index_add_(0, shuffled, grad.to(at::kDouble)).to(at::kDouble);
      EXPECT_LE(relative_difference(leaf.grad().cpu(), expected), tolerance_of(dtype)) << dtype << " of " << width;
    }
  }
}

TEST(CudaEmbedding, RowsTheTableLacksAreNotANumber) {
  FSDP_NEEDS_GPU();
  const at::Tensor weight = at::ones({4, 8}, kGpu).requires_grad_();
  const at::Tensor ids = at::tensor({0, 4, -1, 3}, at::kLong).to(kGpu);
  const at::Tensor y = kernels::embedding(weight, ids);
  EXPECT_TRUE(at::equal(y.isnan().any(1).cpu(), torch::tensor({false, true, true, false})));
  y.backward(at::ones_like(y));
  EXPECT_TRUE(at::equal(weight.grad().sum(1).cpu(), at::tensor({8.0F, 0.0F, 0.0F, 8.0F})));
  EXPECT_THROW(kernels::embedding(weight, ids.cpu()), c10::Error);
}

}  // namespace
}  // namespace fsdp::kernels::embedding_test
