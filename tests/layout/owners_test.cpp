// Whole tensors dealt out to owners: nothing is cut, shards are small, work is even.
#include "fsdp/layout/owners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <stdexcept>

namespace fsdp::layout {
namespace {

using Shape = std::array<int64_t, 2>;

// Blocks of a decoder: q, k, v, o, gate, up, down.
std::vector<Shape> decoder_block(int64_t width, int64_t kv, int64_t ffn) {
  return {{width, width}, {kv, width}, {kv, width}, {width, width}, {ffn, width}, {ffn, width}, {width, ffn}};
}

std::vector<OwnedTensor> tensors_of(const std::vector<Shape>& shapes) {
  std::vector<OwnedTensor> tensors;
  for (const Shape& shape : shapes) tensors.push_back({shape[0] * shape[1], orthogonalization_work(shape)});
  return tensors;
}

// By how much the busiest owner has more than its share.
double imbalance(const std::vector<double>& work) {
  const double share = std::accumulate(work.begin(), work.end(), 0.0) / static_cast<double>(work.size());
  return *std::max_element(work.begin(), work.end()) / share - 1;
}

TEST(Owners, WorkOfADecoderIsEven) {
  struct Case {
    int64_t width, kv, ffn, layers, ranks;
  };
  for (const Case& it : {Case{2048, 512, 11008, 36, 4}, Case{2048, 512, 11008, 36, 8}, Case{576, 192, 1536, 30, 2},
                         Case{4096, 1024, 14336, 32, 8}, Case{4096, 1024, 14336, 32, 16}}) {
    OwnerLoads loads(it.ranks);
    const auto block = tensors_of(decoder_block(it.width, it.kv, it.ffn));
    for (int64_t layer = 0; layer < it.layers; ++layer) loads.deal(block);
    EXPECT_LE(imbalance(loads.work()), 0.05) << it.width << " on " << it.ranks;
  }
}

// Products of the iteration, counted one by one.
TEST(Owners, WorkIsThatOfTheSmallerSide) {
  const double gram = 2.0 * 3 * 3 * 5, square = 2.0 * 3 * 3 * 3, last = 2.0 * 3 * 3 * 5;
  EXPECT_EQ(orthogonalization_work(Shape{3, 5}), gram + square + last);
  EXPECT_EQ(orthogonalization_work(Shape{5, 3}), gram + square + last);
  EXPECT_EQ(orthogonalization_work(std::array<int64_t, 1>{7}), 0);
  EXPECT_EQ(orthogonalization_work(std::array<int64_t, 3>{7, 2, 2}), 0);
}

TEST(Owners, TensorsLieWholeAndApartInTheShardOfTheirOwner) {
  constexpr uint32_t kSeed = 17;
  std::mt19937 random(kSeed);
  for (int trial = 0; trial < 300; ++trial) {
    const auto owners = static_cast<int64_t>(1 + random() % 9);
    const auto align = int64_t{1} << (random() % 4);
    OwnerLoads loads(owners);
    for (int unit = 0; unit < 3; ++unit) {
      std::vector<OwnedTensor> tensors;
      std::vector<int64_t> numels;
      for (size_t i = 0; i < random() % 12; ++i) {
        numels.push_back(random() % 50);
        tensors.push_back({numels.back(), static_cast<double>(random() % 100)});
      }
      const std::vector<int64_t> dealt = loads.deal(tensors);
      const OwnedLayout plan = plan_owned(numels, dealt, owners, align);
      int64_t end = 0, largest = 0;
      ASSERT_EQ(plan.order.size(), numels.size());
      for (size_t k = 0; k < plan.order.size(); ++k) {
        const size_t i = plan.order[k];
        const int64_t begin = plan.layout.offsets[k];
        EXPECT_EQ(plan.layout.numels[k], numels[i]);
        EXPECT_EQ(begin % align, 0) << "seed " << kSeed << ", trial " << trial;
        EXPECT_GE(begin, end);
        end = begin + numels[i];
        EXPECT_GE(begin, dealt[i] * plan.layout.shard_numel);
        EXPECT_LE(end, (dealt[i] + 1) * plan.layout.shard_numel);
        largest = std::max(largest, numels[i]);
      }
      // Graham's bound for greedy packing, alignment on top.
      const int64_t sum = std::accumulate(numels.begin(), numels.end(), int64_t{0});
      const auto slack = static_cast<int64_t>(numels.size()) * (align - 1);
      EXPECT_LE(plan.layout.shard_numel, sum / owners + largest + slack);
    }
  }
}

TEST(Owners, ThatDoNotExistAreRefused) {
  const std::array<int64_t, 1> numels{4}, owner{2};
  EXPECT_THROW(plan_owned(numels, owner, 2, 1), std::invalid_argument);
}

}  // namespace
}  // namespace fsdp::layout
