#include "fsdp/memory/host_cache.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <thread>

#include "fsdp/memory/offset_ranges.h"

namespace fsdp {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

TEST(HostCacheTest, StaysOffUnderSanitizers) { EXPECT_FALSE(enable_host_cache()); }

#else

class HostCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(enable_host_cache());
    trim_host_cache();
  }
  void TearDown() override { disable_host_cache(); }
};

TEST_F(HostCacheTest, GivesTheSameMemoryAgain) {
  const void* first = torch::empty({1 << 20}).data_ptr();
  const int64_t growths = host_cache_stats().growths;
  for (int step = 0; step < 3; ++step) EXPECT_EQ(torch::empty({1 << 20}).data_ptr(), first);
  EXPECT_EQ(torch::empty({1 << 18}).data_ptr(), first);  // a smaller tensor fits, too
  EXPECT_EQ(host_cache_stats().growths, growths);
}

TEST_F(HostCacheTest, CountsWhatIsInUseAndHeld) {
  const HostCacheStats before = host_cache_stats();
  {
    const torch::Tensor a = torch::empty({1 << 20}), b = torch::empty({1 << 19});
    EXPECT_EQ(host_cache_stats().in_use_bytes - before.in_use_bytes, (4 << 20) + (2 << 20));
    const torch::Tensor small = torch::empty({16});
    EXPECT_EQ(host_cache_stats().allocations - before.allocations, 2);
  }
  EXPECT_EQ(host_cache_stats().in_use_bytes, before.in_use_bytes);
  EXPECT_GE(host_cache_stats().held_bytes, 6 << 20);
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * 4096;
}

TEST_F(HostCacheTest, TrimsWhatNobodyUses) {
  const torch::Tensor kept = torch::full({1 << 20}, 3.0F);
  { const torch::Tensor dropped = torch::ones({32 << 20}); }
  const int64_t before = resident_bytes();
  EXPECT_GE(trim_host_cache(), 127 << 20);
  EXPECT_LE(resident_bytes(), before - (120 << 20));
  EXPECT_EQ(host_cache_stats().held_bytes - host_cache_stats().in_use_bytes < (1 << 20), true);
  EXPECT_TRUE(kept.eq(3).all().item<bool>());
  EXPECT_TRUE(torch::zeros({32 << 20}).eq(0).all().item<bool>());  // and can be had again
}

TEST_F(HostCacheTest, NeighboursAreJoined) {
  std::vector<torch::Tensor> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(torch::empty({1 << 18}));
  const int64_t held = host_cache_stats().peak_held_bytes;
  for (const int i : {3, 1, 0, 2, 6, 5, 7, 4}) pieces[static_cast<size_t>(i)].reset();
  const torch::Tensor whole = torch::empty({8 << 18});
  EXPECT_EQ(host_cache_stats().peak_held_bytes, held);
}

TEST_F(HostCacheTest, TensorsOutliveTheSwitch) {
  torch::Tensor tensor = torch::full({1 << 20}, 7.0F);
  disable_host_cache();
  EXPECT_TRUE(tensor.eq(7).all().item<bool>());
  const int64_t allocations = host_cache_stats().allocations;
  EXPECT_EQ(torch::ones({1 << 20}).sum().item<float>(), 1 << 20);
  EXPECT_EQ(host_cache_stats().allocations, allocations);
  tensor.reset();
}

// Blocks never overlap, whatever comes and goes on several threads.
TEST_F(HostCacheTest, KeepsTensorsApart) {
  static constexpr uint32_t kSeed = 7;
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      std::minstd_rand random(kSeed + thread);
      std::vector<std::pair<torch::Tensor, int64_t>> held;
      for (int64_t round = 0; round < 400; ++round) {
        if (held.size() > 6 || (!held.empty() && random() % 2 == 0)) {
          const size_t i = random() % held.size();
          ASSERT_TRUE(held[i].first.eq(held[i].second).all().item<bool>()) << "seed " << kSeed;
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          const int64_t value = thread * 1000 + round;
          held.emplace_back(torch::full({static_cast<int64_t>(random() % 60000)}, value, torch::kLong), value);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

#endif

TEST(OffsetRanges, AreASetOfOffsets) {
  constexpr uint32_t kSeed = 11;
  std::minstd_rand random(kSeed);
  OffsetRanges ranges;
  std::vector<bool> expected(200, false);
  for (int round = 0; round < 2000; ++round) {
    const auto begin = static_cast<int64_t>(random() % 200), end = std::min<int64_t>(200, begin + random() % 30);
    const bool add = random() % 2 == 0;
    add ? ranges.add(begin, end) : ranges.remove(begin, end);
    for (int64_t i = begin; i < end; ++i) expected[static_cast<size_t>(i)] = add;
    ASSERT_EQ(ranges.total(), std::count(expected.begin(), expected.end(), true)) << "seed " << kSeed;
    int64_t last = -1;
    for (const auto& [from, to] : ranges.ends()) {
      ASSERT_GT(from, last);
      ASSERT_EQ(ranges.begin_of_range_to(to), from);
      for (int64_t i = from; i < to; ++i) ASSERT_TRUE(expected[static_cast<size_t>(i)]);
      last = to;
    }
  }
}

}  // namespace
}  // namespace fsdp
