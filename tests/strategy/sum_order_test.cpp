// Which microbatch each rank has, by playing the sums of a world with names in place of numbers.
#include "fsdp/strategy/sum_order.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace fsdp {
namespace {

using Names = std::vector<std::string>;

// The sum of neighbours, pairs, pairs of pairs.
std::string tree_of(Names names) {
  while (names.size() > 1) {
    Names sums;
    for (size_t i = 0; i + 1 < names.size(); i += 2) sums.push_back("(" + names[i] + " " + names[i + 1] + ")");
    if (names.size() % 2 == 1) sums.push_back(names.back());
    names = sums;
  }
  return names[0];
}

struct Played {
  Strategy strategy;
  int64_t shards, replicas, microbatches;

  SumTreeOrder order() const { return {strategy, shards, replicas, microbatches}; }
  std::string leaf(int64_t rank, int64_t micro) const { return std::to_string(order().leaf_of(rank, micro)); }

  // Over the ranks of a shard group in each microbatch, then over these; or the other way round.
  std::string sum_of_group(int64_t replica) const {
    const bool each = traits(strategy).reduce_timing == ReduceTiming::kEveryMicrobatch;
    Names outer;
    for (int64_t i = 0; i < (each ? microbatches : shards); ++i) {
      Names inner;
      for (int64_t j = 0; j < (each ? shards : microbatches); ++j)
        inner.push_back(leaf(replica * shards + (each ? j : i), each ? i : j));
      outer.push_back(tree_of(inner));
    }
    return tree_of(outer);
  }
  std::string sum() const {
    Names groups;
    for (int64_t replica = 0; replica < replicas; ++replica) groups.push_back(sum_of_group(replica));
    return tree_of(groups);
  }
  std::string sum_of_one_rank() const {
    Names names;
    for (int64_t leaf = 0; leaf < order().num_leaves(); ++leaf) names.push_back(std::to_string(leaf));
    return tree_of(names);
  }
  std::string text() const {
    return std::string(name(strategy)) + " " + std::to_string(replicas) + " x " + std::to_string(shards) + ", " +
           std::to_string(microbatches) + " microbatches";
  }
};

void for_each_world(const std::function<void(const Played&)>& body) {
  for (const Strategy strategy : {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                                  Strategy::kOptimGradsParams, Strategy::kHybrid, Strategy::kHybridOptim})
    for (const int64_t shards : {1, 2, 3, 4, 6, 8})
      for (const int64_t replicas : {1, 2, 3, 4})
        for (const int64_t microbatches : {1, 2, 3, 4, 5, 6, 8, 12}) {
          const Played played{strategy, shards, replicas, microbatches};
          SCOPED_TRACE(played.text());
          body(played);
        }
}

TEST(SumTreeOrder, GivesEveryMicrobatchToOneRank) {
  for_each_world([](const Played& played) {
    std::set<int64_t> leaves;
    for (int64_t rank = 0; rank < played.shards * played.replicas; ++rank)
      for (int64_t micro = 0; micro < played.microbatches; ++micro)
        EXPECT_TRUE(leaves.insert(played.order().leaf_of(rank, micro)).second);
    EXPECT_EQ(static_cast<int64_t>(leaves.size()), played.order().num_leaves());
    EXPECT_EQ(*leaves.begin(), 0);
    EXPECT_EQ(*leaves.rbegin(), played.order().num_leaves() - 1);
  });
}

TEST(SumTreeOrder, IsExactWhereTheSumIsThatOfOneRank) {
  int exact = 0;
  for_each_world([&](const Played& played) {
    if (!played.order().is_exact()) return;
    EXPECT_EQ(played.sum(), played.sum_of_one_rank());
    ++exact;
  });
  EXPECT_GT(exact, 100);
}

TEST(SumTreeOrder, OfPowersOfTwoIsExact) {
  for_each_world([](const Played& played) {
    const auto is_power = [](int64_t number) { return (number & (number - 1)) == 0; };
    const bool all = is_power(played.shards) && is_power(played.replicas) && is_power(played.microbatches);
    EXPECT_TRUE(!all || played.order().is_exact());
  });
}

// A batch of 12: alone, on 2 and on 4 ranks where each microbatch is reduced; else on 1 and 3 x 4.
TEST(SumTreeOrder, OtherNumbersOfMicrobatchesAreExactWhereTheyAreTheLastStage) {
  EXPECT_TRUE(SumTreeOrder(Strategy::kOptimGradsParams, 1, 1, 12).is_exact());
  EXPECT_TRUE(SumTreeOrder(Strategy::kOptimGradsParams, 4, 1, 3).is_exact());
  EXPECT_TRUE(SumTreeOrder(Strategy::kOptim, 1, 1, 12).is_exact());
  EXPECT_FALSE(SumTreeOrder(Strategy::kOptim, 2, 1, 6).is_exact());
  EXPECT_FALSE(SumTreeOrder(Strategy::kHybrid, 2, 2, 3).is_exact());
  EXPECT_FALSE(SumTreeOrder(Strategy::kOptimGradsParams, 3, 1, 4).is_exact());
}

}  // namespace
}  // namespace fsdp
