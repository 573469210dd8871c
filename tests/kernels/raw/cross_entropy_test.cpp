#include "kernels/raw/rows/cross_entropy.h"

#include <cmath>
#include <limits>

#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

constexpr int64_t kVocabs[] = {1, 15, 16, 17, 33, 48, 100, 1000};
constexpr float kScales[] = {1, 30, 10000};

template <class T>
double normaliser_of(const std::vector<T>& logits) {
  double top = -std::numeric_limits<double>::infinity(), total = 0;
  for (const T logit : logits) top = std::max<double>(top, to_float(logit));
  for (const T logit : logits) total += std::exp(to_float(logit) - top);
  return top + std::log(total);
}

template <class T>
double mean_of(const std::vector<T>& logits) {
  double total = 0;
  for (const T logit : logits) total += to_float(logit);
  return total / static_cast<double>(logits.size());
}

template <class T>
void check_normaliser(const std::vector<T>& logits) {
  const double expected = normaliser_of(logits);
  ASSERT_NEAR(log_sum_exp(logits.data(), static_cast<int64_t>(logits.size())), expected,
              kFine * (1 + std::abs(expected)))
      << logits.size();
}

template <class T>
void check_rows(int64_t vocab) {
  for (const float scale : kScales) {
    const std::vector<T> logits = random_numbers<T>(vocab, 1, scale);
    ASSERT_NO_FATAL_FAILURE(check_normaliser(logits));
    ASSERT_NEAR(mean(logits.data(), vocab), mean_of(logits), kFine * scale) << vocab;
  }
  // As few as a vector holds: what fills it up must not count, however low all logits are.
  ASSERT_NO_FATAL_FAILURE(check_normaliser(std::vector<T>(static_cast<size_t>(vocab), from_float<T>(-20000))));
  std::vector<T> masked = random_numbers<T>(vocab, 1, 5);
  for (int64_t i = 1; i < vocab; i += 3) masked.data()[i] = from_float<T>(-std::numeric_limits<float>::infinity());
  ASSERT_NO_FATAL_FAILURE(check_normaliser(masked));
}

TEST(RawCrossEntropy, NormaliserAndMeanEqualThoseInDoublePrecision) {
  for_each_isa([] {
    for (const int64_t vocab : kVocabs) {
      ASSERT_NO_FATAL_FAILURE(check_rows<float>(vocab));
      ASSERT_NO_FATAL_FAILURE(check_rows<Bf16>(vocab));
    }
  });
}

template <class T>
void check_nan_at_every_place(int64_t vocab) {
  for (int64_t place = 0; place < vocab; ++place) {
    std::vector<T> logits = random_numbers<T>(vocab, 1, 5);
    logits.data()[place] = from_float<T>(std::numeric_limits<float>::quiet_NaN());
    ASSERT_TRUE(std::isnan(log_sum_exp(logits.data(), vocab))) << place << " of " << vocab;
    ASSERT_TRUE(std::isnan(mean(logits.data(), vocab))) << place << " of " << vocab;
  }
}

TEST(RawCrossEntropy, NanAtAnyPlaceReachesNormaliserAndMean) {
  for_each_isa([] {
    for (const int64_t vocab : kVocabs) {
      ASSERT_NO_FATAL_FAILURE(check_nan_at_every_place<float>(vocab));
      ASSERT_NO_FATAL_FAILURE(check_nan_at_every_place<Bf16>(vocab));
    }
  });
}

// factor * ((1 - smoothing) (n - logit[target]) + smoothing (n - mean(logits)) + z n^2), n the normaliser.
struct Loss {
  double smoothing, z, factor;
};

LossGradient parameters_of(const Loss& loss, double normaliser, int64_t vocab) {
  return {static_cast<float>(normaliser), static_cast<float>(1 + 2 * loss.z * normaliser),
          static_cast<float>(loss.smoothing / static_cast<double>(vocab)), static_cast<float>(1 - loss.smoothing),
          static_cast<float>(loss.factor)};
}

// dn / dlogit[i] = e^(logit[i] - n).
template <class T>
void check_gradient(const std::vector<T>& logits, int64_t target, const Loss& loss) {
  const auto vocab = static_cast<int64_t>(logits.size());
  const double n = normaliser_of(logits);
  Guarded<T> grad(vocab);
  loss_gradient(logits.data(), parameters_of(loss, n, vocab), target, grad.data(), vocab);
  for (int64_t i = 0; i < vocab; ++i) {
    const double of_normaliser = std::exp(to_float(logits.data()[i]) - n) * (1 + 2 * loss.z * n);
    const double of_target = i == target ? 1 - loss.smoothing : 0;
    const double of_mean = loss.smoothing / static_cast<double>(vocab);
    const double expected = (of_normaliser - of_target - of_mean) * loss.factor;
    const double size = (std::abs(of_normaliser) + of_target + of_mean) * std::abs(loss.factor);
    ASSERT_NEAR(grad[i], expected, kFine * size + kRounding<T> * std::abs(expected) + 1e-30)
        << vocab << " at " << i << ", target " << target;
  }
  ASSERT_TRUE(grad.is_intact()) << vocab;
}

template <class T>
void check_gradients(int64_t vocab) {
  for (const float scale : {1.0f, 30.0f})
    for (const int64_t target : {int64_t{0}, vocab / 2, vocab - 1})
      for (const Loss& loss : {Loss{0, 0, 1}, Loss{0.1, 0, -3}, Loss{0, 1e-2, 0.25}, Loss{0.2, 1e-3, 1.0 / 512}})
        ASSERT_NO_FATAL_FAILURE(check_gradient(random_numbers<T>(vocab, 1, scale), target, loss));
}

TEST(RawCrossEntropy, GradientEqualsTheAnalyticOne) {
  for_each_isa([] {
    for (const int64_t vocab : kVocabs) {
      ASSERT_NO_FATAL_FAILURE(check_gradients<float>(vocab));
      ASSERT_NO_FATAL_FAILURE(check_gradients<Bf16>(vocab));
    }
  });
}

// Each term where it belongs, also with values that no loss has.
TEST(RawCrossEntropy, GradientHasEachTermOfTheFormula) {
  for_each_isa([] {
    const std::vector<float> logits = random_floats(33, 1, 3);
    const LossGradient row{1.5f, 0.5f, 2.0f, 3.0f, 0.25f};
    for (const int64_t target : {0, 16, 32}) {
      Guarded<float> grad(33);
      loss_gradient(logits.data(), row, target, grad.data(), 33);
      for (int64_t i = 0; i < 33; ++i) {
        const double weight = std::exp(logits.data()[i] - 1.5) * 0.5;
        ASSERT_NEAR(grad[i], (weight - 2 - (i == target ? 3 : 0)) * 0.25, kFine * (weight + 5));
      }
    }
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
