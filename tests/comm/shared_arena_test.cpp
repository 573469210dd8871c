#include "fsdp/comm/host/shared_arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <string>

#include "fsdp/base/error.h"

namespace fsdp::comm {
namespace {

using ::testing::HasSubstr;

TEST(SharedArena, SlabsAreAlignedJoinedAndUsedAgain) {
  SharedArena arena(int64_t{1} << 30, 100);
  auto* first = static_cast<char*>(arena.take(5000));
  auto* second = static_cast<char*>(arena.take(1));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % SharedArena::kAlignment, 0U);
  EXPECT_EQ(second - first, 8192);
  EXPECT_TRUE(arena.contains(first, 5000));
  EXPECT_FALSE(arena.contains(arena.base()));
  EXPECT_FALSE(arena.contains(&arena));
  first[0] = 7;
  arena.give_back(first, 5000, SharedArena::Keep::kPages);
  arena.give_back(second, 1, SharedArena::Keep::kPages);
  EXPECT_EQ(arena.in_use_bytes(), 0);
  EXPECT_EQ(arena.backed_bytes(), 12288);
  auto* both = static_cast<char*>(arena.take(12288));
  EXPECT_EQ(both, first);
  EXPECT_EQ(both[0], 7);
  arena.give_back(both, 12288, SharedArena::Keep::kNothing);
  EXPECT_EQ(arena.backed_bytes(), 0);
  EXPECT_EQ(static_cast<char*>(arena.take(1))[0], 0);
}

TEST(SharedArena, WhatDoesNotFitIsRefusedWithNumbers) {
  SharedArena arena(int64_t{1} << 20, 4096);
  arena.take(4096);
  try {
    arena.take(int64_t{2} << 20);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory);
    EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("2.0 MiB"), HasSubstr("4.0 KiB are in use")));
  }
}

TEST(SharedArena, NobodyCutsItOff) {
  const SharedArena arena(int64_t{1} << 20, 4096);
  // As another process of this user reaches it.
  const FileDescriptor file(open(("/proc/self/fd/" + std::to_string(arena.file().get())).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file);
  EXPECT_NE(ftruncate(file.get(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_TRUE(keeps_its_size(arena.file()));
}

TEST(OffsetRanges, AgreeWithASetOfNumbers) {
  constexpr int64_t kSpace = 60;
  uint64_t state = 1;
  const auto random = [&state](int64_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(below));
  };
  OffsetRanges ranges;
  std::set<int64_t> numbers;
  for (int step = 0; step < 3000; ++step) {
    const int64_t begin = random(kSpace);
    const int64_t end = begin + random(12);
    const bool adds = random(2) == 0;
    adds ? ranges.add(begin, end) : ranges.remove(begin, end);
    for (int64_t i = begin; i < end; ++i) adds ? void(numbers.insert(i)) : void(numbers.erase(i));
    ASSERT_EQ(ranges.total(), static_cast<int64_t>(numbers.size()));
    std::set<int64_t> absent;
    for (const auto& [from, to] : ranges.missing(0, 80)) {
      for (int64_t i = from; i < to; ++i) absent.insert(i);
    }
    for (int64_t i = 0; i < 80; ++i) ASSERT_NE(numbers.contains(i), absent.contains(i));
  }
}

}  // namespace
}  // namespace fsdp::comm
