#include "kernels/operators/cross_entropy.h"
#include "kernels/products/linear.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"

namespace fsdp::kernels::linear_cross_entropy_test {
namespace {

// Too many logits to keep, in fp32 and in bf16: several chunks of rows, of which the last is not whole.
constexpr std::pair<int64_t, int64_t> kGradientsKept{259, 131072};
static_assert(259 * 131072 * 2 > kMostLogitBytesKept && 259 % logit_rows_at_a_time(259, 131072 * 4) != 0 &&
              259 % logit_rows_at_a_time(259, 131072 * 2) != 0);

TEST(LinearCrossEntropy, EqualsCrossEntropyOfTheLogits) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
      for (const auto& [rows, vocab] : std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {5, 37}, kGradientsKept}) {
        at::Tensor targets = at::randint(0, vocab, {rows}, at::kLong);
        if (rows > 2) targets[1] = kIgnoreIndex;
        expect_same([&](const Inputs& in) { return linear_cross_entropy(in[0], in[1], targets, reduction); },
                    [&](const Inputs& in) { return cross_entropy(kernels::linear(in[0], in[1]), targets, reduction); },
                    {values({rows, 16}, dtype), values({vocab, 16}, dtype) * 0.3}, tolerance_of(dtype),
                    c10::str(dtype, ", ", rows, " x ", vocab));
      }
    }
  }
}

TEST(LinearCrossEntropy, TermsEqualThoseOfTheLogits) {
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const LossTerms& terms : {LossTerms{1e-2, 0}, LossTerms{0, 0.1}, LossTerms{1e-3, 0.2}}) {
      for (const auto& [rows, vocab] : std::vector<std::pair<int64_t, int64_t>>{{5, 37}, kGradientsKept}) {
        at::Tensor targets = at::randint(0, vocab, {rows}, at::kLong);
        targets[1] = kIgnoreIndex;
        expect_same(
            [&](const Inputs& in) { return linear_cross_entropy(in[0], in[1], targets, Reduction::kMean, terms); },
            [&](const Inputs& in) {
              return cross_entropy(kernels::linear(in[0], in[1]), targets, Reduction::kMean, terms);
            },
            {values({rows, 16}, dtype), values({vocab, 16}, dtype) * 0.3}, tolerance_of(dtype),
            c10::str(dtype, ", ", rows, " x ", vocab));
      }
    }
  }
}

// Its gradient is too large to stay as well: logits are made twice.
TEST(LinearCrossEntropy, ALargeWeightKeepsNothing) {
  torch::manual_seed(3);
  constexpr int64_t kRows = 18, kVocab = 1 << 20, kWidth = 65;
  static_assert(kVocab * kWidth > kMostGradientKept && kRows * kVocab * 4 > kMostLogitBytesKept);
  const at::Tensor targets = at::randint(0, kVocab, {kRows}, at::kLong);
  expect_same([&](const Inputs& in) { return linear_cross_entropy(in[0], in[1], targets); },
              [&](const Inputs& in) { return cross_entropy(kernels::linear(in[0], in[1]), targets); },
              {values({kRows, kWidth}, at::kFloat), values({kVocab, kWidth}, at::kFloat) * 0.3},
              tolerance_of(at::kFloat), "large weight");
}

// Whatever the forward keeps. A frozen weight gets no gradient.
TEST(LinearCrossEntropy, ARetainedGraphGoesBackwardTwice) {
  torch::manual_seed(4);
  for (const auto& [rows, vocab] : std::vector<std::pair<int64_t, int64_t>>{{5, 37}, kGradientsKept}) {
    const at::Tensor targets = at::randint(0, vocab, {rows}, at::kLong);
    for (const bool trains : {true, false}) {
      const at::Tensor x = values({rows, 16}, at::kFloat).requires_grad_();
      const at::Tensor weight = values({vocab, 16}, at::kFloat).requires_grad_(trains);
      const at::Tensor loss = linear_cross_entropy(x, weight, targets) * 3;
      loss.backward({}, true);
      const at::Tensor of_x = x.grad() * 2, of_weight = trains ? weight.grad() * 2 : at::Tensor();
      loss.backward();
      EXPECT_TRUE(at::equal(x.grad(), of_x)) << rows << " x " << vocab;
      EXPECT_EQ(weight.grad().defined(), trains);
      if (trains) {
        EXPECT_TRUE(at::equal(weight.grad(), of_weight)) << rows << " x " << vocab;
      }
    }
  }
}

TEST(LinearCrossEntropy, WithoutValidTargetsIsZero) {
  const at::Tensor x = at::ones({3, 4}).requires_grad_(), weight = at::ones({5, 4}).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(x, weight, at::full({3}, kIgnoreIndex, at::kLong));
  loss.backward();
  EXPECT_EQ(loss.item<float>(), 0);
  EXPECT_EQ(weight.grad().count_nonzero().item<int64_t>(), 0);
  linear_cross_entropy(x.narrow(0, 0, 0), weight, at::empty({0}, at::kLong)).backward();
  EXPECT_EQ(weight.grad().count_nonzero().item<int64_t>(), 0);
}

TEST(LinearCrossEntropy, RefusesWhatDoesNotFit) {
  const at::Tensor targets = at::zeros({2}, at::kLong);
  EXPECT_THROW(linear_cross_entropy(at::ones({2, 3}), at::ones({5, 4}), targets), c10::Error);
  EXPECT_THROW(linear_cross_entropy(at::ones({3, 4}), at::ones({5, 4}), targets), c10::Error);
  EXPECT_THROW(linear_cross_entropy(at::ones({2, 4}), at::ones({5, 4}, at::kBFloat16), targets), c10::Error);
  EXPECT_THROW(linear_cross_entropy(at::ones({2, 4}), at::ones({5, 4}), targets + 5), c10::IndexError);
}

// Whatever the forward keeps.
TEST(LinearCrossEntropy, HasFirstDerivativesOnly) {
  torch::manual_seed(5);
  for (const auto& [rows, vocab] : std::vector<std::pair<int64_t, int64_t>>{{5, 37}, kGradientsKept}) {
    const at::Tensor targets = at::randint(0, vocab, {rows}, at::kLong);
    expect_first_derivatives_only([&](const Inputs& in) { return linear_cross_entropy(in[0], in[1], targets); },
                                  {values({rows, 16}, at::kFloat), values({vocab, 16}, at::kFloat) * 0.3},
                                  "linear_cross_entropy");
  }
}

}  // namespace
}  // namespace fsdp::kernels::linear_cross_entropy_test
