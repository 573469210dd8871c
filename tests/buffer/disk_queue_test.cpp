#include "fsdp/buffer/disk_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/buffer/disk_buffers.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::disk_queue_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int64_t kFile = int64_t{9} << 20;

Bytes random_bytes(int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(static_cast<size_t>(size));
  std::generate(bytes.begin(), bytes.end(), [&] { return std::byte(random()); });
  return bytes;
}

// A file with room, and what it must hold.
class DiskQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = (folder_ / "file").string();
    doors_.cached = open(name.c_str(), O_RDWR | O_CREAT, 0600);
    doors_.direct = open(name.c_str(), O_RDWR | O_DIRECT);
    if (doors_.direct < 0) doors_.direct = open(name.c_str(), O_RDWR);  // then the arithmetic alone is tested
    ASSERT_GE(doors_.direct, 0);
    const Bytes zeros(kFile);
    ASSERT_EQ(pwrite(doors_.cached, zeros.data(), kFile, 0), kFile);
  }
  void TearDown() override {
    close(doors_.direct);
    close(doors_.cached);
  }

  // Writes and reads ranges of all alignments, of the file and of memory, and looks at the file as others see it.
  void expect_round_trips(const DiskCalls& calls) {
    std::mt19937 random(7);
    Bytes wanted(kFile);
    Bytes memory(kFile + 2 * kDiskBlock);
    DiskQueue queue(doors_, calls);
    for (unsigned round = 0; round < 40; ++round) {
      const auto pick = [&](int64_t below) { return static_cast<int64_t>(random() % static_cast<uint64_t>(below)); };
      const int64_t most = round % 4 == 0 ? int64_t{8} << 20 : 3 * kDiskBlock;
      const int64_t bytes = 1 + pick(most), offset = round % 3 == 0 ? 0 : pick(kFile - bytes);
      const Bytes content = random_bytes(bytes, round);
      std::copy(content.begin(), content.end(), wanted.begin() + offset);
      // From an address with the file's alignment, or any.
      auto whole = std::shared_ptr<std::byte>(static_cast<std::byte*>(std::aligned_alloc(4096, 10 << 20)), &std::free);
      std::byte* from = whole.get() + (round % 2 == 0 ? offset % kDiskBlock : pick(kDiskBlock));
      std::copy(content.begin(), content.end(), from);
      queue.write({whole, from}, bytes, offset, /*most_behind=*/kFile);
      const int64_t begin = std::max<int64_t>(0, offset - pick(9000));
      const int64_t asked = std::min(kFile - begin, bytes + pick(9000));
      std::byte* to = memory.data() + pick(kDiskBlock);
      const auto read = queue.read(to, asked, begin);  // what is being written
      ASSERT_EQ(queue.wait(*read), 0);
      ASSERT_TRUE(std::equal(to, to + asked, wanted.begin() + begin)) << "round " << round << " at " << offset;
    }
    queue.finish_writes();
    EXPECT_EQ(queue.take_failure(), 0);
    Bytes found(kFile);
    ASSERT_EQ(pread(doors_.cached, found.data(), kFile, 0), kFile);
    EXPECT_TRUE(found == wanted);
  }

  io::TemporaryFolder folder_;
  DiskDoors doors_;
};

TEST_F(DiskQueueTest, RangesOfAllAlignments) { expect_round_trips({}); }

// Every third call is interrupted, others stop early, at a block or inside of one.
TEST_F(DiskQueueTest, ShortAndInterruptedCallsGoOn) {
  std::atomic<int> calls = 0;
  const auto shorter = [&](size_t bytes) -> size_t {
    if (bytes < 8192) return bytes;
    return calls % 2 == 0 ? 4096 : bytes / 2 + 1000;
  };
  const DiskCalls interrupted{[&](int file, void* to, size_t bytes, off_t offset) -> ssize_t {
                                if (++calls % 3 == 0) return errno = EINTR, -1;
                                const auto got = pread(file, to, bytes, offset);
                                return got > 0 ? static_cast<ssize_t>(shorter(static_cast<size_t>(got))) : got;
                              },
                              [&](int file, const void* from, size_t bytes, off_t offset) -> ssize_t {
                                if (++calls % 3 == 0) return errno = EINTR, -1;
                                const size_t some = shorter(bytes) / 4096 * 4096;
                                return pwrite(file, from, some == 0 ? bytes : some, offset);
                              }};
  expect_round_trips(interrupted);
}

TEST_F(DiskQueueTest, WhatAFileSystemRefusesGoesThroughTheCache) {
  const DiskCalls refused{[this](int file, void* to, size_t bytes, off_t offset) -> ssize_t {
                            if (file == doors_.direct) return errno = EINVAL, -1;
                            return pread(file, to, bytes, offset);
                          },
                          [this](int file, const void* from, size_t bytes, off_t offset) -> ssize_t {
                            if (file == doors_.direct) return errno = EINVAL, -1;
                            return pwrite(file, from, bytes, offset);
                          }};
  expect_round_trips(refused);
}

TEST_F(DiskQueueTest, FailuresAreToldOnce) {
  const DiskCalls broken{[](int, void*, size_t, off_t) -> ssize_t { return errno = EIO, -1; },
                         [](int, const void*, size_t, off_t) -> ssize_t { return errno = ENOSPC, -1; }};
  DiskQueue queue(doors_, broken);
  auto memory = std::make_shared<Bytes>(kFile);
  queue.write({memory, memory->data()}, kFile, 0, kFile);
  queue.finish_writes();
  EXPECT_EQ(queue.take_failure(), ENOSPC);
  EXPECT_EQ(queue.take_failure(), 0);
  EXPECT_EQ(queue.wait(*queue.read(memory->data(), kFile, 0)), EIO);
}

// Callers with ranges of their own, between those of others, in a file of which two parts are broken and where calls
// stop early. Whoever touches no broken byte finds what he wrote.
TEST_F(DiskQueueTest, SeveralCallersShareIt) {
  constexpr int64_t kSlot = 70001, kSlots = kFile / kSlot, kCallers = 3;
  constexpr int64_t kNoWrites = 2 << 20, kNoReads = 6 << 20, kBroken = 300000;  // begins and length
  const auto touches = [](int64_t offset, int64_t bytes, int64_t part) {
    return offset < part + kBroken && part < offset + bytes;
  };
  std::atomic<unsigned> calls = 0;
  const auto cut = [&](size_t bytes) { return ++calls % 3 == 0 && bytes > 8192 ? bytes / 2 / 4096 * 4096 : bytes; };
  const DiskCalls broken{[&](int file, void* to, size_t bytes, off_t offset) -> ssize_t {
                           if (calls % 5 == 0) return ++calls, errno = EINTR, -1;
                           const size_t some = cut(bytes);
                           if (touches(offset, static_cast<int64_t>(some), kNoReads)) return errno = EIO, -1;
                           return pread(file, to, some, offset);
                         },
                         [&](int file, const void* from, size_t bytes, off_t offset) -> ssize_t {
                           const size_t some = cut(bytes);
                           if (touches(offset, static_cast<int64_t>(some), kNoWrites)) return errno = ENOSPC, -1;
                           return pwrite(file, from, some, offset);
                         }};
  const auto buffers = std::make_shared<DiskBuffers>();
  std::vector<std::byte> last(kSlots);
  {
    DiskQueue queue(doors_, broken);
    std::vector<std::thread> callers;
    for (int64_t caller = 0; caller < kCallers; ++caller) {
      callers.emplace_back([&, caller] {
        for (unsigned pass = 1; pass <= 5; ++pass) {
          for (int64_t slot = caller; slot < kSlots; slot += kCallers) {
            const int64_t offset = slot * kSlot, into = pass % 2 == 0 ? 0 : offset % kDiskBlock;
            const auto value = std::byte(10 * static_cast<unsigned>(caller) + pass);
            {
              const auto memory = buffers->take(into + kSlot);
              std::memset(memory.get() + into, static_cast<int>(value), kSlot);
              queue.write({memory, memory.get() + into}, kSlot, offset, /*most_behind=*/kSlot);
            }
            last[static_cast<size_t>(slot)] = value;
            const auto memory = buffers->take(kSlot);
            const int error = queue.wait(*queue.read(memory.get(), kSlot, offset));
            EXPECT_EQ(error, touches(offset, kSlot, kNoReads) ? EIO : 0);
            if (error != 0 || touches(offset, kSlot, kNoWrites)) continue;
            EXPECT_TRUE(std::all_of(memory.get(), memory.get() + kSlot, [&](std::byte b) { return b == value; }));
            if (slot % 4 == 0) queue.finish_within(offset, kSlot);
          }
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    queue.finish_writes();
    EXPECT_EQ(queue.take_failure(), ENOSPC);
    EXPECT_EQ(queue.take_failure(), 0);
    // Under way when the queue goes.
    const auto memory = buffers->take(kSlot);
    std::memset(memory.get(), 99, kSlot);
    queue.write({memory, memory.get()}, kSlot, 0, kFile);
    last[0] = std::byte{99};
  }
  Bytes found(kFile);
  ASSERT_EQ(pread(doors_.cached, found.data(), kFile, 0), kFile);
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    if (touches(slot * kSlot, kSlot, kNoWrites)) continue;
    const std::byte* begin = found.data() + slot * kSlot;
    EXPECT_TRUE(std::all_of(begin, begin + kSlot, [&](std::byte b) { return b == last[static_cast<size_t>(slot)]; }));
  }
}

TEST_F(DiskQueueTest, AFileThatEndsIsAnError) {
  DiskQueue queue(doors_);
  Bytes memory(8192);
  EXPECT_EQ(queue.wait(*queue.read(memory.data(), 8192, kFile - 4096)), EIO);
}

// The caller waits while more than that is on its way.
TEST_F(DiskQueueTest, WritesThatWaitAreBounded) {
  std::atomic<int64_t> under_way = 0, most = 0;
  const DiskCalls counting{::pread, [&](int file, const void* from, size_t bytes, off_t offset) {
                             const ssize_t done = pwrite(file, from, bytes, offset);
                             under_way -= done;
                             return done;
                           }};
  DiskQueue queue(doors_, counting);
  constexpr int64_t kPiece = int64_t{1} << 20;
  for (int64_t i = 0; i < 8; ++i) {
    const auto memory = std::make_shared<Bytes>(kPiece);
    under_way += kPiece;
    queue.write({memory, memory->data()}, kPiece, i * kPiece, 2 * kPiece);
    most = std::max(most.load(), under_way.load());
  }
  EXPECT_LE(most, 2 * kPiece);
}

TEST(DiskBuffers, AreKeptForTheNextUpToABound) {
  const auto buffers = std::make_shared<DiskBuffers>();
  for (const int64_t bytes : {int64_t{100}, int64_t{70000}, int64_t{2} << 20, int64_t{5} << 20}) {
    std::byte* first = nullptr;
    {
      const auto memory = buffers->take(bytes);
      first = memory.get();
      std::memset(first, 1, static_cast<size_t>(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % kDiskBlock, 0u);
    }
    EXPECT_EQ(buffers->take(bytes).get(), first);
  }
  std::vector<std::shared_ptr<std::byte>> many;
  for (int i = 0; i < 60; ++i) many.push_back(buffers->take(int64_t{2} << 20));
  EXPECT_EQ(buffers->idle_bytes(), 0);
  many.clear();
  EXPECT_EQ(buffers->idle_bytes(), DiskBuffers::kMostKept);
}

}  // namespace
}  // namespace fsdp::disk_queue_test
