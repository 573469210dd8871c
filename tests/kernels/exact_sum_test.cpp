// Sums without rounding, against sums of 113 bits over numbers that fit these.
#include "kernels/flat/exact_sum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/flat/sum_squares.h"

namespace fsdp::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double sum_of(const std::vector<double>& numbers) {
  ExactSum sum;
  for (const double number : numbers) sum.add(number);
  return sum.rounded();
}

TEST(ExactSum, IsRoundedOnce) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const int lowest = static_cast<int>(random() % 1900) - 1000;
    std::vector<double> numbers;
    __float128 expected = 0;
    for (int i = 0; i < 40; ++i) {
      const double number =
          std::ldexp(static_cast<double>(random() >> 11), lowest + static_cast<int>(random() % 54) - 53);
      numbers.push_back(number);
      expected += number;
    }
    ASSERT_EQ(sum_of(numbers), static_cast<double>(expected)) << "seed 7, trial " << trial;
  }
}

TEST(ExactSum, OfHalvesGoesToTheEvenNeighbour) {
  const double unit = 0x1p-52, half = 0x1p-53;
  EXPECT_EQ(sum_of({1, half}), 1);
  EXPECT_EQ(sum_of({1 + unit, half}), 1 + 2 * unit);
  EXPECT_EQ(sum_of({1, half, 0x1p-1074}), 1 + unit);  // far below, but above the half
}

TEST(ExactSum, DoesNotDependOnOrderAndCuts) {
  std::mt19937_64 random(8);
  std::vector<double> numbers = {0, 0x1p-1074, 0x1p-1022, std::numeric_limits<double>::max() / 4};
  for (int i = 0; i < 500; ++i)
    numbers.push_back(std::ldexp(static_cast<double>(random() >> 11), static_cast<int>(random() % 2000) - 1074));
  const double expected = sum_of(numbers);
  for (int trial = 0; trial < 20; ++trial) {
    std::shuffle(numbers.begin(), numbers.end(), random);
    ExactSum parts[3];
    for (const double number : numbers) parts[random() % 3].add(number);
    ExactSum::Words words{};
    for (ExactSum& part : parts)
      for (size_t i = 0; i < words.size(); ++i) words[i] += part.words()[i];
    ExactSum whole;
    whole.set_words(words);
    ASSERT_EQ(whole.rounded(), expected) << "seed 8, trial " << trial;
  }
}

TEST(ExactSum, TellsWhatIsNotFinite) {
  EXPECT_EQ(sum_of({}), 0);
  EXPECT_EQ(sum_of({1, kInfinity, 2}), kInfinity);
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, std::nan("")})));
  EXPECT_EQ(sum_of({std::numeric_limits<double>::max(), std::numeric_limits<double>::max()}), kInfinity);
}

TEST(AddSquares, OfSlicesAtBlocksAreThoseOfTheWhole) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(9);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int64_t numel : {int64_t{1}, int64_t{255}, int64_t{256}, int64_t{257}, int64_t{5000}}) {
      const at::Tensor values =
          at::randn({numel}, generator).mul_(at::randn({numel}, generator).mul(8).exp()).to(dtype);
      ExactSum whole;
      add_squares(whole, values);
      const double expected = values.to(at::kDouble).square().sum().item<double>();
      ASSERT_NEAR(whole.rounded(), expected, 1e-6 * expected);
      for (int64_t first = kSquaresBlock; first < numel; first += 3 * kSquaresBlock) {
        ExactSum parts;
        add_squares(parts, values.narrow(0, first, numel - first));
        add_squares(parts, values.narrow(0, 0, first));
        ASSERT_EQ(parts.rounded(), whole.rounded()) << dtype << ", " << numel << " cut at " << first << ", seed 9";
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels
