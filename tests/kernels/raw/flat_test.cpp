// Kernels over flat ranges: packing, sums, norms and copies.
#include <array>
#include <cmath>

#include "kernels/raw/flat/pack.h"
#include "kernels/raw/flat/stores.h"
#include "kernels/raw/flat/sum_chunks.h"
#include "kernels/raw/flat/sum_squares.h"
#include "tests/kernels/raw/numbers.h"

namespace fsdp::kernels::raw {
namespace {

constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 33, 48, 100};

// A product of two fp32 numbers is exact in double precision, so that it is rounded once here; where there are
// multiply-adds, what is added to is rounded once. With that no element depends on its place.
template <class T>
void check_scaling(int64_t count) {
  constexpr float kScale = 0.3f;
  const std::vector<T> from = random_numbers<T>(count, 1, 3);
  const std::vector<float> start = random_floats(count, 2);
  Guarded<float> scaled(count), added(start);
  scale_to(scaled.data(), from.data(), kScale, count);
  add_scaled(added.data(), from.data(), kScale, count);
  for (int64_t i = 0; i < count; ++i) {
    const auto product = static_cast<float>(static_cast<double>(to_float(from.data()[i])) * kScale);
    ASSERT_EQ(scaled[i], product) << count << " at " << i;
    const bool is_fused = cpu_isa() >= CpuIsa::kAvx2;
    ASSERT_EQ(added[i],
              is_fused ? std::fma(to_float(from.data()[i]), kScale, start.data()[i]) : start.data()[i] + product)
        << count << " at " << i;
  }
  ASSERT_TRUE(scaled.is_intact() && added.is_intact()) << count;
}

TEST(RawPack, ScalesAndAddsAlikeInEveryPlace) {
  for_each_isa([] {
    for (const int64_t count : kCounts) {
      ASSERT_NO_FATAL_FAILURE(check_scaling<float>(count));
      ASSERT_NO_FATAL_FAILURE(check_scaling<Bf16>(count));
    }
  });
}

struct Sum {
  int64_t num_chunks, count;
  bool add;
  Stores stores;
};

// Round after round, each number and its neighbour become one; what has no neighbour waits.
float tree_sum(std::vector<float> numbers) {
  while (numbers.size() > 1) {
    std::vector<float> sums;
    for (size_t i = 0; i + 1 < numbers.size(); i += 2) sums.push_back(numbers[i] + numbers[i + 1]);
    if (numbers.size() % 2 == 1) sums.push_back(numbers.back());
    numbers = std::move(sums);
  }
  return numbers[0];
}

// `offset` numbers after a line of the cache starts.
void check_sum(const Sum& sum, int64_t offset) {
  std::vector<std::vector<float>> numbers;
  std::vector<const float*> chunks;
  for (int64_t chunk = 0; chunk < sum.num_chunks; ++chunk) {
    numbers.push_back(random_floats(sum.count + 1, static_cast<uint32_t>(chunk + 1)));
    chunks.push_back(numbers.back().data() + chunk % 2);
  }
  const std::vector<float> start = random_floats(sum.count + 64, 9);
  alignas(64) std::array<float, 192> room{};
  std::copy(start.begin(), start.end(), room.begin());
  sum_chunks(room.data() + offset, chunks.data(), sum.num_chunks, sum.count, sum.add, sum.stores);
  for (int64_t i = 0; i < sum.count + 64; ++i) {
    float expected = start.data()[i];
    if (const int64_t at = i - offset; at >= 0 && at < sum.count) {
      std::vector<float> terms;
      for (const float* chunk : chunks) terms.push_back(chunk[at]);
      const float total = tree_sum(terms);
      expected = sum.add ? expected + total : total;
    }
    ASSERT_EQ(room.data()[i], expected) << sum.num_chunks << " chunks of " << sum.count << " to " << offset;
  }
}

TEST(RawSumChunks, AddsAsATreeWhereverItWrites) {
  for_each_isa([] {
    for (const int64_t num_chunks : {1, 2, 3, 4, 5, 6, 7, 8, 11, 16})
      for (const int64_t count : kCounts)
        for (const bool add : {false, true})
          for (const Stores stores : {Stores::kCached, Stores::kPastCache})
            for (int64_t offset = 0; offset <= 16; ++offset)
              ASSERT_NO_FATAL_FAILURE(check_sum({num_chunks, count, add, stores}, offset));
  });
}

// What ranks of a host add up, and then hosts, is what all ranks add up.
TEST(RawSumChunks, OfSumsOfNeighboursIsTheSumOfAll) {
  for_each_isa([] {
    constexpr int64_t kCount = 33;
    std::vector<std::vector<float>> numbers;
    std::vector<const float*> chunks;
    for (uint32_t chunk = 0; chunk < 12; ++chunk)
      chunks.push_back(numbers.emplace_back(random_floats(kCount, chunk)).data());
    std::vector<float> all(kCount);
    sum_chunks(all.data(), chunks.data(), 12, kCount, /*add=*/false, Stores::kCached);
    for (const size_t width : {1, 2, 4}) {
      std::vector<std::vector<float>> sums;
      std::vector<const float*> parts;
      for (size_t first = 0; first < chunks.size(); first += width) {
        auto& sum = sums.emplace_back(kCount);
        sum_chunks(sum.data(), chunks.data() + first, static_cast<int64_t>(width), kCount, /*add=*/false,
                   Stores::kCached);
        parts.push_back(sum.data());
      }
      std::vector<float> total(kCount);
      sum_chunks(total.data(), parts.data(), static_cast<int64_t>(parts.size()), kCount, /*add=*/false,
                 Stores::kCached);
      ASSERT_EQ(total, all) << width;
    }
  });
}

TEST(RawSumSquares, EqualsTheSumInDoublePrecision) {
  for_each_isa([] {
    for (const int64_t count : {0, 1, 15, 16, 17, 31, 32, 33, 100, 1023, 1024, 1025, 1040, 5000, 100003}) {
      const std::vector<float> values = random_floats(count, 1, 3);
      double expected = 0;
      for (const float value : values) expected += static_cast<double>(value) * value;
      ASSERT_NEAR(sum_squares(values.data(), count), expected, 1e-6 * expected) << count;
    }
  });
}

// Only a few small numbers can be lost beside a large one: those that are summed with it in fp32.
TEST(RawSumSquares, KeepsSmallNumbersBesideLargeOnes) {
  for_each_isa([] {
    constexpr int64_t kCount = 1 << 20;
    std::vector<float> values(kCount, 1);
    values[0] = 4096;
    const double expected = 4096.0 * 4096.0 + kCount - 1;
    EXPECT_NEAR(sum_squares(values.data(), kCount), expected, kFine * expected);
  });
}

TEST(RawStores, CopyEveryByteAndNoOther) {
  for_each_isa([] {
    std::vector<std::byte> from(1100);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 % 251);
    for (const Stores stores : {Stores::kCached, Stores::kPastCache})
      for (const int64_t bytes : {0, 1, 15, 16, 17, 63, 64, 65, 128, 200, 1000})
        for (int64_t to = 0; to <= 64; ++to)
          for (const int64_t offset : {0, 1, 4, 33}) {
            alignas(64) std::array<std::byte, 1200> room;
            std::memset(room.data(), 0xEE, room.size());
            copy_bytes(room.data() + to, from.data() + offset, bytes, stores);
            ASSERT_EQ(std::memcmp(room.data() + to, from.data() + offset, static_cast<size_t>(bytes)), 0)
                << bytes << " bytes to " << to << " from " << offset;
            const auto stayed = [](std::byte byte) { return byte == std::byte{0xEE}; };
            ASSERT_TRUE(std::all_of(room.data(), room.data() + to, stayed) &&
                        std::all_of(room.data() + to + bytes, room.data() + room.size(), stayed))
                << bytes << " bytes to " << to;
          }
  });
}

TEST(RawStores, CountBytesBeforeALine) {
  alignas(64) std::array<std::byte, 128> room{};
  for (int64_t i = 0; i <= 64; ++i) EXPECT_EQ(bytes_before_line(room.data() + i), (64 - i % 64) % 64);
}

}  // namespace
}  // namespace fsdp::kernels::raw
