// Codes against a search through all borders, and weights of 24 bits against arithmetic on their integers.
#include "kernels/raw/flat/block_code.h"

#include <cmath>
#include <limits>

#include "kernels/raw/flat/weight_digits.h"
#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

constexpr int64_t kRagged[] = {1, 3, 7, 16, 17, 100, 255, 256};

// Evenly, and by powers of ten: with and without negative ones.
std::vector<std::vector<float>> fraction_lists() {
  std::vector<std::vector<float>> lists(4);
  for (int i = 0; i < 256; ++i) {
    lists[0].push_back(static_cast<float>(i + 1) / 256);
    lists[1].push_back(static_cast<float>(std::max(i - 128, -127)) / 127);
  }
  lists[2] = lists[3] = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    for (int i = 0; i < (2 << decade); ++i)
      lists[2].push_back(static_cast<float>(std::pow(10, decade - 6) * (0.1 + 0.9 * (i + 0.5) / (2 << decade))));
    for (int i = 0; i < (1 << decade); ++i) {
      for (const int sign : {-1, 1})
        lists[3].push_back(
            static_cast<float>(sign * std::pow(10, decade - 6) * (0.1 + 0.9 * (i + 0.5) / (1 << decade))));
    }
  }
  for (auto& list : lists) std::sort(list.begin(), list.end());
  return lists;
}

// How many borders are below it.
uint8_t code_by_search(const std::vector<float>& fractions, float fraction) {
  int below = 0;
  for (size_t i = 0; i + 1 < fractions.size(); ++i) below += !((fractions[i] + fractions[i + 1]) / 2 >= fraction);
  return static_cast<uint8_t>(below);
}

// 1 first, so that a block's scale is 1; then each border with its neighbours, each fraction, and some of any size.
std::vector<float> hard_fractions(const std::vector<float>& fractions) {
  std::vector<float> numbers = {1, 0, -0.0F, std::numeric_limits<float>::denorm_min(), 1e-30F};
  for (size_t i = 0; i + 1 < fractions.size(); ++i) {
    const float border = (fractions[i] + fractions[i + 1]) / 2;
    for (const float number : {border, std::nextafter(border, 2.0F), std::nextafter(border, -2.0F), fractions[i]})
      numbers.push_back(number);
  }
  for (const float number : random_floats(2000, 3)) numbers.push_back(number * std::exp2(-24 * std::abs(number)));
  const bool has_signs = fractions.front() < 0;
  for (float& number : numbers) number = std::clamp(has_signs ? number : std::abs(number), -1.0F, 1.0F);
  return numbers;
}

TEST(RawBlockCode, FindsWhatASearchThroughAllBordersFinds) {
  for (const std::vector<float>& fractions : fraction_lists()) {
    ASSERT_EQ(fractions.size(), 256u);
    const BlockCodes code(fractions.data());
    const std::vector<float> numbers = hard_fractions(fractions);
    for_each_isa([&] {
      std::vector<uint8_t> codes(numbers.size());
      const auto count = static_cast<int64_t>(numbers.size());
      ASSERT_EQ(encode_block(numbers.data(), code, codes.data(), count), 1);
      for (size_t i = 0; i < numbers.size(); ++i)
        ASSERT_EQ(codes[i], code_by_search(fractions, numbers[i])) << numbers[i];
      std::vector<float> back(numbers.size());
      decode_block(codes.data(), 0.3F, code, back.data(), count);
      for (size_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(back[i], fractions[codes[i]] * 0.3F) << i;
    });
  }
}

TEST(RawBlockCode, ScalesByTheLargestMagnitudeOfAnyLength) {
  const std::vector<float> fractions = fraction_lists()[3];
  const BlockCodes code(fractions.data());
  for_each_isa([&] {
    for (const int64_t count : kRagged) {
      const std::vector<float> numbers = random_floats(count, static_cast<uint32_t>(count), 1e-6F);
      float scale = 0;
      for (const float number : numbers) scale = std::max(scale, std::abs(number));
      std::vector<uint8_t> codes(static_cast<size_t>(count) + 1, 77);
      Guarded<float> back(count);
      ASSERT_EQ(encode_block(numbers.data(), code, codes.data(), count), scale);
      decode_block(codes.data(), scale, code, back.data(), count);
      ASSERT_EQ(codes.back(), 77);
      ASSERT_TRUE(back.is_intact());
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(codes[at], code_by_search(fractions, numbers[at] / scale)) << count << " at " << i;
        ASSERT_EQ(back[i], fractions[codes[at]] * scale) << count << " at " << i;
      }
    }
  });
}

TEST(RawBlockCode, ZerosAndWhatIsNotFiniteKeepTheirScale) {
  const BlockCodes code(fraction_lists()[3].data());
  for_each_isa([&] {
    uint8_t codes[3];
    float back[3];
    const float zeros[] = {0, 0, 0};
    EXPECT_EQ(encode_block(zeros, code, codes, 3), 0);
    decode_block(codes, 0, code, back, 3);
    EXPECT_TRUE(same_bits(back, zeros, 3));
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    const float lost[] = {1, nan, infinity}, large[] = {1, -infinity, 2};
    EXPECT_TRUE(std::isnan(encode_block(lost, code, codes, 3)));
    EXPECT_EQ(encode_block(large, code, codes, 3), infinity);
    EXPECT_EQ(codes[0], code.code_of(0));
  });
}

TEST(RawBlockCode, RefusesFractionsThatAreTooNearEachOther) {
  std::vector<float> fractions = fraction_lists()[0];
  for (int i = 0; i < 9; ++i) fractions[static_cast<size_t>(100 + i)] = 0.4F + 1e-6F * static_cast<float>(i);
  EXPECT_THROW(BlockCodes(fractions.data()), std::invalid_argument);
}

uint32_t bits_of(float number) { return std::bit_cast<uint32_t>(number); }

std::vector<float> weights_of_all_kinds() {
  std::vector<float> weights = random_floats(4000, 9, 2);
  for (size_t i = 0; i < weights.size(); i += 2) weights[i] *= std::exp2(static_cast<float>(i % 240) - 120);
  for (const float weight : {0.0F, -0.0F, 1.0F, -1.0F, std::nextafter(2.0F, 0.0F), 1.99609375F, 1e-40F,
                             std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()})
    weights.push_back(weight);
  return weights;
}

// To 24 bits, ties to even; and the bf16 is the nearest to that.
TEST(RawWeightDigits, SplitAndJoinKeep24Bits) {
  const std::vector<float> weights = weights_of_all_kinds();
  const auto count = static_cast<int64_t>(weights.size());
  for_each_isa([&] {
    std::vector<Bf16> rounded(weights.size());
    std::vector<int8_t> digits(weights.size());
    std::vector<float> back(weights.size());
    split_digits(weights.data(), rounded.data(), digits.data(), count);
    join_digits(rounded.data(), digits.data(), back.data(), count);
    for (size_t i = 0; i < weights.size(); ++i) {
      const uint32_t bits = bits_of(weights[i]);
      const uint32_t kept = (bits + 0x7F + (bits >> 8 & 1)) & ~0xFFu;
      ASSERT_EQ(bits_of(back[i]), kept) << weights[i];
      const double whole = std::bit_cast<float>(kept), half = to_float(rounded[i]);
      if (!std::isfinite(half)) continue;
      ASSERT_LE(std::abs(half - whole), std::abs(to_float(from_float<Bf16>(static_cast<float>(whole))) - whole))
          << weights[i];
    }
  });
}

TEST(RawWeightDigits, NanStaysNanAndZeroStaysZero) {
  for_each_isa([] {
    const float nans[] = {std::bit_cast<float>(0x7FFFFFFFu), std::bit_cast<float>(0xFF800001u)};
    Bf16 rounded[2];
    int8_t digits[2];
    float back[2];
    for (const bool at_random : {false, true}) {
      at_random ? split_digits_randomly(nans, 5, rounded, digits, 2) : split_digits(nans, rounded, digits, 2);
      join_digits(rounded, digits, back, 2);
      for (int i = 0; i < 2; ++i) EXPECT_TRUE(std::isnan(to_float(rounded[i])) && std::isnan(back[i]));
    }
    // A zero over a weight whose digits were below it.
    const Bf16 zeros[] = {{0}, {0x8000}};
    const int8_t stale[] = {-3, -128};
    join_digits(zeros, stale, back, 2);
    EXPECT_EQ(back[0], 0);
    EXPECT_EQ(back[1], 0);
  });
}

TEST(RawWeightDigits, RandomRoundingIsRightInTheMeanAndTheSameOnAllSets) {
  constexpr int64_t kCount = 1 << 14;
  const std::vector<float> weights(kCount, std::bit_cast<float>(0x3F812340u));  // a quarter between two of 24 bits
  std::vector<int8_t> expected;
  for_each_isa([&] {
    std::vector<Bf16> rounded(kCount);
    std::vector<int8_t> digits(kCount), others(kCount);
    split_digits_randomly(weights.data(), 17, rounded.data(), digits.data(), kCount);
    split_digits_randomly(weights.data(), 18, rounded.data(), others.data(), kCount);
    if (expected.empty()) expected = digits;
    EXPECT_EQ(digits, expected);
    const auto ups = std::count(digits.begin(), digits.end(), 0x24);
    EXPECT_EQ(std::count(digits.begin(), digits.end(), 0x23) + ups, kCount);
    EXPECT_NEAR(static_cast<double>(ups) / kCount, 0.25, 0.02);
    int64_t both = 0;
    for (size_t i = 0; i < digits.size(); ++i) both += digits[i] == 0x24 && others[i] == 0x24;
    EXPECT_NEAR(static_cast<double>(both) / kCount, 0.0625, 0.01);
  });
}

}  // namespace
}  // namespace fsdp::kernels::raw
