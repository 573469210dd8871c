#include "fsdp/comm/collectives.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/ranks.h"

namespace fsdp {
namespace {

using testing::run_ranks;

TEST(Collectives, SumsKeepShapeAndDtype) {
  for (const int size : {1, 2, 3}) {
    run_ranks(size, [&](const World& world) {
      const torch::Tensor mine = torch::full({2, 3}, world.rank + 1, at::kLong);
      EXPECT_TRUE(torch::equal(sum_over_ranks(world, mine), torch::full({2, 3}, size * (size + 1) / 2, at::kLong)));
      EXPECT_EQ(mine[0][0].item<int64_t>(), world.rank + 1);  // not in place
      EXPECT_EQ(sum_over_ranks(world, torch::tensor(0.5)).dim(), 0);
      EXPECT_EQ(sum_over_ranks(world, torch::empty({0})).numel(), 0);
      const torch::Tensor tracked = torch::ones({2}, torch::requires_grad());
      EXPECT_FALSE(sum_over_ranks(world, tracked).requires_grad());
      EXPECT_TRUE(torch::equal(sum_over_ranks(world, torch::arange(6).view({2, 3}).t()),
                               size * torch::arange(6).view({2, 3}).t()));
    });
  }
}

// In rank order: (1e8 + 1) - 1e8 is 0 in fp32, every other order gives 1 somewhere.
TEST(Collectives, SumsAreInRankOrder) {
  run_ranks(3, [](const World& world) {
    const float values[] = {1e8F, 1.0F, -1e8F};
    EXPECT_EQ(sum_over_ranks(world, torch::tensor(values[world.rank])).item<float>(), 0.0F);
  });
}

std::string text_of(int rank) {
  return rank == 1 ? "" : std::string(static_cast<size_t>(rank) * 1000, 'x') + std::to_string(rank);
}

TEST(Collectives, GathersStringsOfAnyLength) {
  for (const int size : {1, 2, 3, 4}) {
    run_ranks(size, [&](const World& world) {
      const std::vector<std::string> all = gather_strings(world, text_of(world.rank));
      ASSERT_EQ(static_cast<int>(all.size()), size);
      for (int rank = 0; rank < size; ++rank) EXPECT_EQ(all[static_cast<size_t>(rank)], text_of(rank));
      EXPECT_EQ(gather_strings(world, ""), std::vector<std::string>(static_cast<size_t>(size)));
    });
  }
}

TEST(Collectives, BroadcastsRankZerosString) {
  for (const int size : {1, 3}) {
    run_ranks(size, [&](const World& world) {
      const std::string text("a\0b\n", 4);
      EXPECT_EQ(broadcast_string(world, world.rank == 0 ? text : "other, longer text"), text);
      EXPECT_EQ(broadcast_string(world, world.rank == 0 ? "" : "x"), "");
    });
  }
}

// Evaluation losses are summed there.
TEST(Collectives, WorkUnderInferenceMode) {
  run_ranks(2, [](const World& world) {
    const c10::InferenceMode inference;
    EXPECT_EQ(sum_over_ranks(world, torch::ones({1}) * (world.rank + 1)).item<float>(), 3.0F);
    EXPECT_EQ(gather_strings(world, std::to_string(world.rank)), (std::vector<std::string>{"0", "1"}));
    EXPECT_EQ(broadcast_string(world, std::to_string(world.rank)), "0");
    barrier(world, "end");
  });
}

}  // namespace
}  // namespace fsdp
