#include "fsdp/strategy/strategy.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace fsdp {
namespace {

constexpr Strategy kOneAxis[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                                 Strategy::kOptimGradsParams};
constexpr Strategy kTwoAxes[] = {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim};
constexpr Strategy kAll[] = {Strategy::kNoShard,          Strategy::kOptim,  Strategy::kOptimGrads,
                             Strategy::kOptimGradsParams, Strategy::kHybrid, Strategy::kHybridZero2,
                             Strategy::kHybridOptim};

template <class Function>
std::string message_of(const Function& function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Strategy, EveryAliasInAnyCase) {
  const struct {
    Strategy strategy;
    std::vector<std::string> names;
  } cases[] = {
      {Strategy::kNoShard, {"no_shard", "NO_SHARD", "DDP", "ddp", "ZeRO-0", "zero0", "zero-0"}},
      {Strategy::kOptim, {"optim", "ZeRO-1", "zero1", "Zero_1"}},
      {Strategy::kOptimGrads, {"optim_grads", "ZeRO-2", "SHARD_GRAD_OP", "zero2", "optim-grads"}},
      {Strategy::kOptimGradsParams, {"optim_grads_params", "ZeRO-3", "FULL_SHARD", "zero3", "OPTIM_GRADS_PARAMS"}},
      {Strategy::kHybrid, {"hybrid", "HSDP", "HYBRID_SHARD", "hybrid-shard"}},
      {Strategy::kHybridZero2, {"hybrid_zero2", "_HYBRID_SHARD_ZERO2", "HYBRID_SHARD_ZERO2"}},
      {Strategy::kHybridOptim, {"hybrid_optim", "HFSDP", "hfsdp"}},
  };
  for (const auto& c : cases) {
    for (const std::string& text : c.names) EXPECT_EQ(parse_strategy(text), c.strategy) << text;
  }
}

TEST(Strategy, NamesRoundTrip) {
  for (Strategy strategy : kAll) {
    EXPECT_EQ(parse_strategy(name(strategy)), strategy);
    EXPECT_EQ(placements(strategy_of(placements(strategy))), placements(strategy));
  }
}

TEST(Strategy, UnknownNameListsTheLegalOnesAndTheNearest) {
  const std::string message = message_of([] { parse_strategy("zreo-3"); });
  EXPECT_NE(message.find("Did you mean 'zero_3'"), std::string::npos) << message;
  for (Strategy strategy : kAll) EXPECT_NE(message.find(name(strategy)), std::string::npos) << message;
  EXPECT_NE(message_of([] { parse_strategy(""); }).find("got ''"), std::string::npos);
  EXPECT_NE(message_of([] { parse_strategy("full_shards"); }).find("'full_shard'"), std::string::npos);
}

TEST(Strategy, OfTheSamePlacementsTheOneAxisStrategyIsMeant) {
  for (Strategy strategy : kOneAxis) EXPECT_EQ(strategy_of(placements(strategy)), strategy);
  EXPECT_EQ(strategy_of(placements(Strategy::kHybrid)), Strategy::kOptimGradsParams);
  EXPECT_EQ(strategy_of(placements(Strategy::kHybridZero2)), Strategy::kOptimGrads);
  EXPECT_EQ(strategy_of(placements(Strategy::kHybridOptim)), Strategy::kHybridOptim);
}

// The table of the design: (model weight, gradient, optimizer state) over replicate x shard.
TEST(Strategy, HybridPlacements) {
  constexpr Placement R = Placement::kReplicate;
  constexpr Placement S = Placement::kShard;
  constexpr Placement P = Placement::kPartial;
  EXPECT_EQ(placements(Strategy::kHybrid), (MeshPlacement{{R, P, R}, {S, S, S}}));
  EXPECT_EQ(placements(Strategy::kHybridZero2), (MeshPlacement{{R, P, R}, {R, S, S}}));
  EXPECT_EQ(placements(Strategy::kHybridOptim), (MeshPlacement{{R, S, S}, {S, S, S}}));
  for (Strategy strategy : kTwoAxes) EXPECT_EQ(traits(strategy).mesh, MeshNeed::kShardAndReplicateAxis);
  for (Strategy strategy : kOneAxis) EXPECT_EQ(traits(strategy).mesh, MeshNeed::kShardAxis);
}

TEST(Strategy, EveryPlacementIsAStrategyOrRefusedWithTheLegalOnes) {
  std::vector<PlacementTriple> triples;
  constexpr Placement kPlacements[] = {Placement::kReplicate, Placement::kShard, Placement::kPartial};
  for (Placement weight : kPlacements) {
    for (Placement gradient : kPlacements) {
      for (Placement optimizer : kPlacements) triples.push_back({weight, gradient, optimizer});
    }
  }
  int legal = 0;
  for (const PlacementTriple& replicate : triples) {
    for (const PlacementTriple& shard : triples) {
      const MeshPlacement placement{replicate, shard};
      const std::string message = message_of([&] { EXPECT_EQ(placements(strategy_of(placement)), placement); });
      if (message == "no error") {
        ++legal;
        continue;
      }
      EXPECT_NE(message.find("optim_grads (replicate, partial, replicate) x (replicate, shard, shard)"),
                std::string::npos)
          << message;
      EXPECT_NE(message.find("hybrid_optim (replicate, shard, shard) x (shard, shard, shard)"), std::string::npos);
    }
  }
  EXPECT_EQ(legal, 5);
}

TEST(Strategy, TraitsFollowFromPlacements) {
  for (Strategy strategy : kAll) {
    const PlacementTriple triple = placements(strategy).shard;
    const StrategyTraits t = traits(strategy);
    EXPECT_EQ(t.shards_main_weight, triple.optimizer == Placement::kShard);
    EXPECT_EQ(t.gather == GatherTiming::kNever, !t.shards_main_weight);
    EXPECT_EQ(t.gather == GatherTiming::kPerForwardAndBackward, triple.weight == Placement::kShard);
    EXPECT_EQ(t.reshard_after_forward, triple.weight == Placement::kShard);
    EXPECT_EQ(t.reduce == ReduceKind::kReduceScatter, t.shards_main_weight);
    EXPECT_EQ(t.shards_over_replicas, placements(strategy).replicate.optimizer == Placement::kShard);
    EXPECT_EQ(t.reduce_timing == ReduceTiming::kEveryMicrobatch, triple.gradient == Placement::kShard);
  }
}

}  // namespace
}  // namespace fsdp
