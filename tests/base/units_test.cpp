#include "fsdp/base/units.h"

#include <gtest/gtest.h>

namespace fsdp {
namespace {

TEST(Units, BytesInTheLargestFittingUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(kMiB), "1.0 MiB");
  EXPECT_EQ(format_bytes(int64_t{5} * kGiB / 2), "2.50 GiB");
}

TEST(Units, CountsInThousandsMillionsAndBillions) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(9999), "9999");
  EXPECT_EQ(format_count(57'900), "57.9K");
  EXPECT_EQ(format_count(57'900'000), "57.9M");
  EXPECT_EQ(format_count(3'080'000'000), "3.08B");
}

}  // namespace
}  // namespace fsdp
