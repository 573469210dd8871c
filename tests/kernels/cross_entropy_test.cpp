#include "kernels/operators/cross_entropy.h"

#include "tests/kernels/compare.h"
#include "tests/kernels/second_derivative.h"

namespace fsdp::kernels::cross_entropy_test {
namespace {

// In fp64: LibTorch's own fp32 sums over a vocabulary differ by more than the kernel may.
at::Tensor reference(const at::Tensor& logits, const at::Tensor& targets, Reduction reduction,
                     const LossTerms& terms = {}) {
  const bool mean = reduction == Reduction::kMean;
  const at::Tensor wide = logits.to(at::kDouble), valid = targets.ne(kIgnoreIndex);
  const at::Tensor loss = at::cross_entropy_loss(wide, targets, {}, mean ? at::Reduction::Mean : at::Reduction::Sum,
                                                 kIgnoreIndex, terms.label_smoothing);
  if (terms.z_loss == 0) return loss.to(at::kFloat);
  const at::Tensor squares = terms.z_loss * (wide.logsumexp(1).square() * valid).sum();
  return (loss + (mean ? squares / valid.sum() : squares)).to(at::kFloat);
}

at::Tensor some_targets(int64_t count, int64_t vocab, bool ignore) {
  at::Tensor targets = at::randint(0, vocab, {count}, at::kLong);
  if (ignore && count > 2) targets.slice(0, 1, count, 3).fill_(kIgnoreIndex);
  return targets;
}

TEST(CrossEntropy, EqualsComposite) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [count, vocab] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {1, 7}, {5, 16}, {9, 17}, {30, 320}, {200, 1001}, {3, 32000}}) {
      for (const bool ignore : {false, true}) {
        for (const auto reduction : {Reduction::kSum, Reduction::kMean}) {
          const at::Tensor targets = some_targets(count, vocab, ignore);
          expect_same([&](const Inputs& in) { return cross_entropy(in[0], targets, reduction); },
                      [&](const Inputs& in) { return reference(in[0], targets, reduction); },
                      {3 * values({count, vocab}, dtype)}, tolerance_of(dtype),
                      c10::str(dtype, " ", count, "x", vocab));
        }
      }
    }
  }
}

TEST(CrossEntropy, TermsEqualComposite) {
  torch::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [count, vocab] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {9, 17}, {40, 333}, {5, 4096}}) {
      for (const LossTerms& terms : {LossTerms{1e-2, 0}, LossTerms{0, 0.1}, LossTerms{1e-4, 0.3}, LossTerms{0.5, 1}}) {
        for (const auto reduction : {Reduction::kSum, Reduction::kMean}) {
          const at::Tensor targets = some_targets(count, vocab, /*ignore=*/true);
          expect_same([&](const Inputs& in) { return cross_entropy(in[0], targets, reduction, terms); },
                      [&](const Inputs& in) { return reference(in[0], targets, reduction, terms); },
                      {3 * values({count, vocab}, dtype) + 2}, tolerance_of(dtype),
                      c10::str(dtype, " ", count, "x", vocab, " z ", terms.z_loss, " e ", terms.label_smoothing));
        }
      }
    }
  }
}

TEST(CrossEntropy, RefusesTermsOutsideTheirRange) {
  const at::Tensor logits = at::zeros({1, 3}), targets = at::zeros({1}, at::kLong);
  for (const LossTerms& terms : {LossTerms{-1, 0}, LossTerms{NAN, 0}, LossTerms{0, -0.1}, LossTerms{0, 1.1}}) {
    EXPECT_THROW(cross_entropy(logits, targets, Reduction::kMean, terms), c10::Error);
    EXPECT_THROW(linear_cross_entropy(logits, at::zeros({4, 3}), targets, Reduction::kMean, terms), c10::Error);
  }
}

TEST(CrossEntropy, TakesNonContiguousLogits) {
  torch::manual_seed(2);
  const at::Tensor targets = some_targets(8, 5, true);
  expect_same([&](const Inputs& in) { return cross_entropy(in[0].t(), targets); },
              [&](const Inputs& in) { return reference(in[0].t(), targets, Reduction::kMean); },
              {values({5, 8}, at::kFloat)}, 4e-6, "transposed");
}

TEST(CrossEntropy, LossOfBfloat16LogitsIsExactToFp32) {
  torch::manual_seed(3);
  const at::Tensor logits = 4 * values({50, 300}, at::kBFloat16), targets = some_targets(50, 300, true);
  EXPECT_NEAR(cross_entropy(logits, targets).item<double>(),
              reference(logits, targets, Reduction::kMean).item<double>(), 2e-6);
}

TEST(CrossEntropy, ScalesWithTheIncomingGradient) {
  torch::manual_seed(4);
  const at::Tensor targets = some_targets(6, 9, false);
  expect_same([&](const Inputs& in) { return cross_entropy(in[0], targets) / 4; },
              [&](const Inputs& in) { return reference(in[0], targets, Reduction::kMean) / 4; },
              {values({6, 9}, at::kFloat)}, 4e-6, "divided");
}

TEST(CrossEntropy, NothingToPredictIsZero) {
  for (const int64_t count : {0, 3}) {
    const at::Tensor logits = at::randn({count, 8}).requires_grad_();
    const at::Tensor targets = at::full({count}, kIgnoreIndex, at::kLong);
    const at::Tensor loss = cross_entropy(logits, targets);
    loss.backward();
    EXPECT_EQ(loss.item<float>(), 0.0f);
    EXPECT_TRUE((logits.grad() == 0).all().item<bool>());
    EXPECT_EQ(count_valid_targets(targets), 0);
  }
}

TEST(CrossEntropy, SurvivesLargeLogitsAndPassesNanOn) {
  const at::Tensor targets = at::zeros({1}, at::kLong);
  EXPECT_NEAR(cross_entropy(at::tensor({-1e30f, 0.0f, 1e4f}).view({1, 3}), at::ones({1}, at::kLong)).item<float>(),
              1e4f, 1e-2);
  EXPECT_TRUE(std::isnan(cross_entropy(at::full({1, 20}, NAN), targets).item<float>()));
  at::Tensor one_nan = at::zeros({1, 40});
  one_nan[0][17] = NAN;
  EXPECT_TRUE(std::isnan(cross_entropy(one_nan, targets).item<float>()));
}

// Among the last entries too, which do not fill a vector; beside -inf, which masks an entry.
TEST(CrossEntropy, PassesNanOnFromEveryPlace) {
  const at::Tensor targets = at::zeros({1}, at::kLong);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t vocab : {15, 17, 40}) {
      for (int64_t place = 0; place < vocab; ++place) {
        at::Tensor logits = at::zeros({1, vocab}, dtype);
        logits[0][vocab - 1] = -INFINITY;
        ASSERT_TRUE(std::isfinite(cross_entropy(logits, targets).item<float>())) << dtype << " " << vocab;
        logits[0][place] = NAN;
        ASSERT_TRUE(std::isnan(at::cross_entropy_loss(logits, targets).item<float>()));
        EXPECT_TRUE(std::isnan(cross_entropy(logits, targets).item<float>()))
            << dtype << ", place " << place << " of " << vocab;
      }
    }
  }
}

TEST(CrossEntropy, NamesTheTargetThatIsOutsideTheVocabulary) {
  for (const int64_t bad : {7, -1, 1000}) {
    try {
      cross_entropy(at::zeros({2, 7}), at::tensor({int64_t{3}, bad}));
      FAIL() << "no error for target " << bad;
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      EXPECT_NE(message.find("got " + std::to_string(bad)), std::string::npos) << message;
      EXPECT_NE(message.find("7 entries"), std::string::npos) << message;
    }
  }
  EXPECT_THROW(cross_entropy(at::zeros({2, 7}), at::zeros({3}, at::kLong)), c10::Error);
  EXPECT_THROW(cross_entropy(at::zeros({2, 7}), at::zeros({2}, at::kInt)), c10::Error);
}

TEST(CrossEntropy, HasFirstDerivativesOnly) {
  torch::manual_seed(6);
  const at::Tensor targets = some_targets(6, 9, true);
  expect_first_derivatives_only([&](const Inputs& in) { return cross_entropy(in[0], targets); },
                                {values({6, 9}, at::kFloat)}, "cross_entropy");
}

}  // namespace
}  // namespace fsdp::kernels::cross_entropy_test
