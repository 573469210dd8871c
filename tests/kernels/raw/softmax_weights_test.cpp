#include "kernels/raw/attention/softmax_weights.h"

#include <limits>

#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kSoftmaxCounts[] = {1, 15, 16, 17, 33, 48, 100};

// The first of equals; NaN is above nothing.
int64_t index_of_highest(const std::vector<float>& x) {
  int64_t best = -1;
  float top = kLowest;
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i] > top) {
      top = x[i];
      best = static_cast<int64_t>(i);
    }
  return best;
}

void check_softmax(const std::vector<float>& x, float scale) {
  const auto count = static_cast<int64_t>(x.size());
  Guarded<float> weights(count);
  const int64_t best = index_of_highest(x);
  ASSERT_EQ(softmax_weights(x.data(), count, scale, weights.data()), best) << count;
  for (int64_t i = 0; i < count; ++i) {
    const float value = x.data()[i];
    if (std::isnan(value) || value == kLowest || best < 0) {
      ASSERT_EQ(weights[i], 0) << count << " at " << i;
    } else {
      const double expected = std::exp((static_cast<double>(value) - x.data()[best]) * scale);
      // Below 1e-37 there are no more digits, or 0.
      ASSERT_NEAR(weights[i], expected, kFine * expected + 1e-37) << count << " at " << i;
    }
  }
  ASSERT_TRUE(weights.is_intact()) << count;
}

TEST(SoftmaxWeights, EqualTheFormulaInDoublePrecision) {
  for_each_isa([] {
    for (const int64_t count : kSoftmaxCounts)
      for (const float scale : {0.3f, 1.0f, 3.0f, 100.0f}) {
        ASSERT_NO_FATAL_FAILURE(check_softmax(random_floats(count, 1, scale > 10 ? 1 : 10), scale));
      }
  });
}

// Masked logits, at each place: whole vectors and what is left have their own way.
TEST(SoftmaxWeights, OfNanAndOfTheLowestAreZero) {
  for_each_isa([] {
    for (const int64_t count : kSoftmaxCounts)
      for (const float masked : {kNan, kLowest})
        for (int64_t place = 0; place < count; ++place) {
          std::vector<float> one_masked = random_floats(count, 1, 10), one_left(static_cast<size_t>(count), masked);
          one_masked.data()[place] = masked;
          ASSERT_NO_FATAL_FAILURE(check_softmax(one_masked, 1));
          one_left.data()[place] = -5;
          ASSERT_NO_FATAL_FAILURE(check_softmax(one_left, 1));
        }
  });
}

TEST(SoftmaxWeights, AreZerosWhereNothingIsAboveTheLowest) {
  for_each_isa([] {
    for (const int64_t count : kSoftmaxCounts) {
      std::vector<float> x(static_cast<size_t>(count), kLowest);
      ASSERT_NO_FATAL_FAILURE(check_softmax(x, 1));
      for (size_t i = 0; i < x.size(); i += 2) x[i] = kNan;
      ASSERT_NO_FATAL_FAILURE(check_softmax(x, 1));
      std::fill(x.begin(), x.end(), kNan);
      ASSERT_NO_FATAL_FAILURE(check_softmax(x, 1));
    }
    EXPECT_EQ(softmax_weights(nullptr, 0, 1, nullptr), -1);
  });
}

TEST(SoftmaxWeights, TheFirstOfEqualsIsTheHighest) {
  for_each_isa([] {
    for (const int64_t count : kSoftmaxCounts)
      for (int64_t first = 0; first < count; ++first) {
        std::vector<float> x = random_floats(count, 1);
        for (int64_t i = first; i < count; i += 5) x.data()[i] = 2;
        ASSERT_NO_FATAL_FAILURE(check_softmax(x, 1));
      }
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
