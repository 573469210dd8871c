#include "kernels/products/linear.h"

#include "kernels/products/linear_parts.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"

namespace fsdp::kernels::linear_test {
namespace {

TEST(Linear, EqualsAtLinear) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{
             {1, 1}, {7, 5}, {2, 3, 16}, {3, 40, 33}, {1, 1, 64}, {0, 8}, {2, 0, 8}, {300, 33}, {2, 150, 48}}) {
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
  for (const auto dtype : {at::kFloat, at::kBFloat16})  // enough rows for tiles of our own, across and in columns
    for (const bool across : {false, true}) {
      const auto view = [=](const at::Tensor& x) { return across ? x.t() : x.narrow(1, 3, 40); };
      expect_same([&](const Inputs& in) { return kernels::linear(view(in[0]), in[1]); },
                  [&](const Inputs& in) { return at::linear(view(in[0]), in[1]); },
                  {across ? values({40, 300}, dtype) : values({300, 50}, dtype), values({7, 40}, dtype)},
                  tolerance_of(dtype), c10::str("many rows ", dtype, " ", across));
    }
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

TEST(Linear, FillsSlotsWithWeightGradients) {
  torch::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {1, 7, 32, 33, 128, 200}) {
      for (const int64_t inputs : {16, 21, 48, 64, 80, 192}) {
        for (const bool adds : {false, true}) {
          const at::Tensor grad = at::randn({tokens, 37}).to(dtype), x = at::randn({tokens, inputs}).to(dtype);
          const at::Tensor before = at::randn({37, inputs}), target = before.clone();
          fill_weight_gradient({target, adds, 0.5, {}}, grad, x);
          const at::Tensor exact = 0.5 * grad.to(at::kDouble).t().mm(x.to(at::kDouble)) + (adds ? 1 : 0) * before;
          const double scale = std::sqrt(static_cast<double>(tokens));
          EXPECT_LE((target - exact).abs().max().item<double>(), 4 * scale * tolerance_of(dtype))
              << dtype << " " << tokens << " tokens, " << inputs << " inputs, adds " << adds;
        }
      }
    }
  }
}

TEST(Linear, RefusesWhatDoesNotFit) {
  EXPECT_THROW(kernels::linear(at::ones({2, 3}), at::ones({4, 2})), c10::Error);
  EXPECT_THROW(kernels::linear(at::ones({2, 3}), at::ones({4, 3}, at::kBFloat16)), c10::Error);
}

TEST(Linear, HasFirstDerivativesOnly) {
  torch::manual_seed(4);
  const auto function = [](const Inputs& in) { return kernels::linear(in[0], in[1]); };
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t tokens : {3, 300})  // few, and enough for tiles of our own
      expect_first_derivatives_only(function, {values({2, tokens, 24}, dtype), values({16, 24}, dtype)}, "linear");
  }
  // The gradient of a frozen weight stays undefined.
  const at::Tensor x = at::randn({3, 4}).requires_grad_(), frozen = at::randn({5, 4});
  const at::Tensor gradient = torch::autograd::grad({kernels::linear(x, frozen).square().sum()}, {x}, {},
                                                    /*retain_graph=*/true, /*create_graph=*/true)[0];
  EXPECT_LE(relative_difference(gradient.detach(), 2 * x.detach().mm(frozen.t()).mm(frozen)), 4e-6);
  EXPECT_NE(error_of([&] { gradient.sum().backward(); }).find("[linear] got a gradient of a gradient"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdp::kernels::linear_test
