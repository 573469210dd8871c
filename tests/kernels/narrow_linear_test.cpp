// Products of bf16 numbers with fp32 weights, against fp64 products of LibTorch's bf16 numbers.
#include "kernels/products/narrow_linear.h"

#include "kernels/operators/cross_entropy.h"
#include "kernels/products/fused_linear.h"
#include "kernels/products/linear.h"
#include "tests/kernels/calls_of.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"
#include "tests/kernels/slot_owner.h"

namespace fsdp::kernels::narrow_linear_test {
namespace {

at::Tensor as_bf16(const at::Tensor& wide) { return wide.detach().to(at::kBFloat16).to(at::kDouble); }

TEST(NarrowLinear, EqualsProductsOfBf16Numbers) {
  torch::manual_seed(17);
  for (const int64_t tokens : {1, 40, 300}) {
    const at::Tensor x = at::randn({tokens, 96}).requires_grad_(), grad = at::randn({tokens, 64});
    const at::Tensor weight = at::randn({64, 96}).requires_grad_();
    const at::Tensor y = narrow_linear(x, weight);
    y.backward(grad);
    constexpr double kRounding = 1.2e-2;  // of the results, to bf16
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_LE(relative_difference(y, as_bf16(x).mm(as_bf16(weight).t())), kRounding);
    EXPECT_LE(relative_difference(x.grad(), as_bf16(grad).mm(as_bf16(weight))), kRounding);
    EXPECT_LE(relative_difference(weight.grad(), as_bf16(grad).t().mm(as_bf16(x))), kRounding);
  }
}

TEST(NarrowLinear, TakesWeightsThatAreMarked) {
  torch::manual_seed(18);
  const at::Tensor x = at::randn({2, 3, 32}), weight = at::randn({16, 32}), other = at::randn({16, 32});
  EXPECT_FALSE(is_narrow(weight));
  set_narrow(weight);
  EXPECT_TRUE(is_narrow(weight));
  const at::Tensor expected = narrow_linear(x, weight);
  EXPECT_FALSE(at::equal(expected, at::linear(x, weight)));
  EXPECT_TRUE(at::equal(kernels::linear(x, weight), expected));
  const auto fused = fused_linear(x, {weight, other});
  EXPECT_TRUE(at::equal(fused[0], expected));
  EXPECT_TRUE(at::allclose(fused[1], at::linear(x, other), 1e-4, 1e-5));
}

TEST(NarrowLinear, FillsTheSlotOfTheWeightsGradient) {
  torch::manual_seed(19);
  const at::Tensor x = at::randn({40, 64}).requires_grad_(), weight = at::randn({32, 64}).requires_grad_();
  const at::Tensor grad = at::randn({40, 32}), target = at::ones({32, 64});
  const SlotOwner owner(weight, target, /*is_added=*/true, /*factor=*/0.5);
  narrow_linear(x, weight).backward(grad);
  EXPECT_LE(relative_difference((target - 1) * 2, as_bf16(grad).t().mm(as_bf16(x))), 1.2e-2);
}

TEST(NarrowLinear, HeadsMultiplyBf16Numbers) {
  torch::manual_seed(20);
  const at::Tensor targets = at::arange(12, at::kLong);
  const auto loss_of = [&](const at::Tensor& x, const at::Tensor& head) {
    return linear_cross_entropy(x, head, targets, Reduction::kMean, {});
  };
  const at::Tensor x = at::randn({12, 16}).requires_grad_(), head = at::randn({40, 16}).requires_grad_();
  const at::Tensor expected = loss_of(x.detach().to(at::kBFloat16), head.detach().to(at::kBFloat16));
  set_narrow(head);
  const at::Tensor loss = loss_of(x, head);
  loss.backward();
  EXPECT_TRUE(at::equal(loss.detach(), expected));
  EXPECT_EQ(head.grad().scalar_type(), at::kFloat);
  EXPECT_GT(x.grad().abs().max().item<double>(), 0);
}

TEST(NarrowLinear, RefusesWhatItCannotMultiply) {
  const at::Tensor x = at::randn({4, 32}), weight = at::randn({16, 32});
  EXPECT_THROW(narrow_linear(x.to(at::kBFloat16), weight), c10::Error);
  EXPECT_THROW(narrow_linear(x, weight.to(at::kBFloat16)), c10::Error);
  EXPECT_THROW(narrow_linear(at::randn({4, 31}), weight), c10::Error);
}

TEST(NarrowLinear, HasFirstDerivativesOnly) {
  torch::manual_seed(21);
  expect_first_derivatives_only([](const Inputs& in) { return narrow_linear(in[0], in[1]); },
                                {at::randn({7, 32}), at::randn({16, 32})}, "narrow_linear");
}

}  // namespace
}  // namespace fsdp::kernels::narrow_linear_test
