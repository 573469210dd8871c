#include "io/base/element_cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "io/base/crc32.h"

namespace fsdp::io {
namespace {

uint16_t to_bfloat16(float value) {
  uint16_t bits = 0;
  cast_elements(DType::F32, &value, DType::BF16, &bits, 1);
  return bits;
}

TEST(ElementCast, WhichTypes) {
  for (const DTypeInfo& info : kDTypes) {
    const std::string_view name = info.name;
    EXPECT_EQ(is_float(info.dtype), name == "F16" || name == "BF16" || name == "F32" || name == "F64") << name;
  }
}

TEST(ElementCast, ToBFloat16RoundsToNearestEven) {
  const auto from_bits = [](uint32_t bits) { return std::bit_cast<float>(bits); };
  EXPECT_EQ(to_bfloat16(1.0F), 0x3F80);
  EXPECT_EQ(to_bfloat16(from_bits(0x3F808000)), 0x3F80);  // a tie: down to even
  EXPECT_EQ(to_bfloat16(from_bits(0x3F818000)), 0x3F82);  // a tie: up to even
  EXPECT_EQ(to_bfloat16(from_bits(0x3F808001)), 0x3F81);
  EXPECT_EQ(to_bfloat16(from_bits(0x3F807FFF)), 0x3F80);
  EXPECT_EQ(to_bfloat16(-0.0F), 0x8000);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()), 0x7F80);  // rounds to infinity
  EXPECT_EQ(to_bfloat16(-std::numeric_limits<float>::infinity()), 0xFF80);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::quiet_NaN()), 0x7FC0);
  EXPECT_EQ(to_bfloat16(from_bits(0x7F800001)), 0x7FC0);  // would round to infinity
  EXPECT_EQ(to_bfloat16(from_bits(1)), 0);
}

uint16_t to_half(float value) {
  uint16_t bits = 0;
  cast_elements(DType::F32, &value, DType::F16, &bits, 1);
  return bits;
}

float from_half(uint16_t half) {
  float value = 0;
  cast_elements(DType::F16, &half, DType::F32, &value, 1);
  return value;
}

// Between two neighbours the nearer, in the middle the even one; neighbours differ by one in their bits.
TEST(ElementCast, ToHalfRoundsToNearestEven) {
  for (uint32_t i = 0; i < 0x7C00; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const float here = from_half(half);
    ASSERT_EQ(to_half(here), half);
    ASSERT_EQ(to_half(-here), half | 0x8000);
    const float next = i + 1 == 0x7C00 ? 65536.0F : from_half(static_cast<uint16_t>(i + 1));
    const float middle = here + (next - here) / 2;
    ASSERT_EQ(to_half(middle), i % 2 == 0 ? i : i + 1) << middle;
    ASSERT_EQ(to_half(std::nextafter(middle, 0.0F)), i) << middle;
    ASSERT_EQ(to_half(std::nextafter(middle, 1e6F)), i + 1) << middle;
  }
  EXPECT_EQ(to_half(1e9F), 0x7C00);
  EXPECT_EQ(to_half(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_EQ(to_half(std::numeric_limits<float>::quiet_NaN()), 0x7E00);
}

TEST(ElementCast, EveryBFloat16IsExact) {
  std::vector<uint16_t> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  cast_elements(DType::BF16, all.data(), DType::F32, wide.data(), static_cast<int64_t>(all.size()));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(std::bit_cast<uint32_t>(wide[i]), i << 16);
}

TEST(ElementCast, EveryHalf) {
  for (uint32_t i = 0; i < 1 << 16; ++i) {
    const uint16_t half = static_cast<uint16_t>(i);
    float got = 0;
    cast_elements(DType::F16, &half, DType::F32, &got, 1);
    const int exponent = static_cast<int>(i >> 10 & 0x1F);
    const float fraction = static_cast<float>(i & 0x3FF);
    const float size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent != 31) {
      EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>((i & 0x8000) != 0 ? -size : size)) << i;
    } else if ((i & 0x3FF) == 0) {
      EXPECT_EQ(got, (i & 0x8000) != 0 ? -INFINITY : INFINITY);
    } else {
      EXPECT_TRUE(std::isnan(got));
    }
  }
}

TEST(ElementCast, DoubleGoesByWayOfFloat) {
  const double values[] = {0.1, 1e300, -1e-300, 1.0 + 0x1p-8 + 0x1p-40};
  float narrow[4] = {};
  cast_elements(DType::F64, values, DType::F32, narrow, 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(narrow[i], static_cast<float>(values[i]));
  uint16_t bits[4] = {};
  cast_elements(DType::F64, values, DType::BF16, bits, 4);
  EXPECT_EQ(bits[0], 0x3DCD);
  EXPECT_EQ(bits[1], 0x7F80);
  EXPECT_EQ(bits[2], 0x8000);
  EXPECT_EQ(bits[3], 0x3F80);  // as PyTorch: the float in between is a tie
}

TEST(Crc32, KnownValuesInAnyPieces) {
  const std::string_view text = "123456789";
  EXPECT_EQ(crc32(0, text.data(), text.size()), 0xCBF43926u);
  EXPECT_EQ(crc32(0, nullptr, 0), 0u);
  const std::string_view fox = "The quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= fox.size(); ++cut) {
    EXPECT_EQ(crc32(crc32(0, fox.data(), cut), fox.data() + cut, fox.size() - cut), 0x414FA339u);
  }
}

}  // namespace
}  // namespace fsdp::io
