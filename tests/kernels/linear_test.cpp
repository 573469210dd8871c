#include "kernels/linear.h"

#include "tests/kernels/compare.h"

namespace fsdp::kernels {
namespace {

TEST(Linear, EqualsAtLinear) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape :
         std::vector<std::vector<int64_t>>{{1, 1}, {7, 5}, {2, 3, 16}, {3, 40, 33}, {1, 1, 64}, {0, 8}, {2, 0, 8}}) {
      for (const int64_t out : {1, 16, 37})
        expect_same([](const Inputs& in) { return kernels::linear(in[0], in[1]); },
                    [](const Inputs& in) { return at::linear(in[0], in[1]); },
                    {values(shape, dtype), values({out, shape.back()}, dtype)}, tolerance_of(dtype),
                    c10::str(dtype, " ", shape, " -> ", out));
    }
  }
}

TEST(Linear, TakesNonContiguousInputs) {
  torch::manual_seed(2);
  expect_same([](const Inputs& in) { return kernels::linear(in[0].transpose(0, 1), in[1].t()); },
              [](const Inputs& in) { return at::linear(in[0].transpose(0, 1), in[1].t()); },
              {values({6, 4, 10}, at::kFloat), values({10, 7}, at::kFloat)}, 4e-6, "transposed");
}

TEST(Linear, GivesOnlyTheGradientsAskedFor) {
  const at::Tensor x = at::randn({3, 4}), weight = at::randn({5, 4}).requires_grad_();
  kernels::linear(x, weight).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(weight.grad().defined());
  const at::Tensor leaf = at::randn({3, 4}).requires_grad_();
  kernels::linear(leaf, weight.detach()).sum().backward();
  EXPECT_TRUE(leaf.grad().defined());
}

TEST(Linear, RefusesWhatDoesNotFit) {
  EXPECT_THROW(kernels::linear(at::ones({2, 3}), at::ones({4, 2})), c10::Error);
  EXPECT_THROW(kernels::linear(at::ones({2, 3}), at::ones({4, 3}, at::kBFloat16)), c10::Error);
}

}  // namespace
}  // namespace fsdp::kernels
