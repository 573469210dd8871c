#include "train/data/data_order.h"

#include <gtest/gtest.h>

#include <set>

#include "train/data/shuffle.h"

namespace fsdp::train {
namespace {

TEST(Shuffle, IsAPermutationOfAnySize) {
  for (const uint64_t size : {1, 2, 3, 4, 5, 16, 17, 100, 255, 256, 257, 1000}) {
    const Shuffle shuffle(7, 3, size);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t value = shuffle(i);
      EXPECT_LT(value, size);
      seen.insert(value);
    }
    EXPECT_EQ(seen.size(), size);
  }
}

TEST(Shuffle, HandlesTheLargestSizes) {
  const Shuffle shuffle(1, 0, uint64_t{1} << 62);
  EXPECT_LT(shuffle(0), uint64_t{1} << 62);
  EXPECT_NE(shuffle(0), shuffle(1));
}

TEST(Shuffle, SeedAndEpochMatter) {
  const auto first = [](uint64_t seed, uint64_t epoch) {
    std::vector<uint64_t> values;
    for (uint64_t i = 0; i < 50; ++i) {
      values.push_back(Shuffle(seed, epoch, 1000)(i));
    }
    return values;
  };
  EXPECT_EQ(first(1, 0), first(1, 0));
  EXPECT_NE(first(1, 0), first(1, 1));
  EXPECT_NE(first(1, 0), first(2, 0));
  EXPECT_NE(first(1, 1), first(2, 0));
}

TEST(Shuffle, LooksRandom) {
  const uint64_t size = 10000;
  const Shuffle shuffle(5, 0, size);
  int64_t rises = 0;
  double distance = 0;
  for (uint64_t i = 0; i + 1 < size; ++i) {
    const auto a = static_cast<double>(shuffle(i));
    const auto b = static_cast<double>(shuffle(i + 1));
    rises += a < b;
    distance += std::abs(a - b);
  }
  EXPECT_NEAR(static_cast<double>(rises), 5000, 200);
  EXPECT_NEAR(distance / static_cast<double>(size), static_cast<double>(size) / 3, 100);
}

TEST(DataOrder, EachEpochVisitsEachSequenceOnce) {
  const DataOrder order(3, 10);
  std::vector<int64_t> all;
  for (int64_t step = 0; step < 5; ++step) {
    const auto batch = order.sequences(4 * step, 4);
    ASSERT_EQ(batch.size(), 4u);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  EXPECT_EQ(std::set<int64_t>(all.begin(), all.begin() + 10).size(), 10u);
  EXPECT_EQ(std::set<int64_t>(all.begin() + 10, all.end()).size(), 10u);
  EXPECT_NE(std::vector<int64_t>(all.begin(), all.begin() + 10), std::vector<int64_t>(all.begin() + 10, all.end()));
}

}  // namespace
}  // namespace fsdp::train
