#include "fsdp/strategy/strategy.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace fsdp {
namespace {

constexpr Strategy kAll[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams};

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
  };
  for (const auto& c : cases) {
    for (const std::string& text : c.names) EXPECT_EQ(parse_strategy(text), c.strategy) << text;
  }
}

TEST(Strategy, NamesRoundTrip) {
  for (Strategy strategy : kAll) {
    EXPECT_EQ(parse_strategy(name(strategy)), strategy);
    EXPECT_EQ(strategy_of(placements(strategy)), strategy);
  }
}

TEST(Strategy, UnknownNameListsTheLegalOnesAndTheNearest) {
  const std::string message = message_of([] { parse_strategy("zreo-3"); });
  EXPECT_NE(message.find("Did you mean 'zero_3'"), std::string::npos) << message;
  for (Strategy strategy : kAll) EXPECT_NE(message.find(name(strategy)), std::string::npos) << message;
  EXPECT_NE(message_of([] { parse_strategy(""); }).find("got ''"), std::string::npos);
  EXPECT_NE(message_of([] { parse_strategy("full_shards"); }).find("'full_shard'"), std::string::npos);
}

TEST(Strategy, HybridsAreNotInThisVersion) {
  for (const char* text :
       {"hybrid", "HSDP", "HYBRID_SHARD", "hybrid_zero2", "_HYBRID_SHARD_ZERO2", "hybrid_optim", "HFSDP"}) {
    const std::string message = message_of([&] { parse_strategy(text); });
    EXPECT_NE(message.find("not in this version"), std::string::npos) << message;
  }
}

TEST(Strategy, TripleOfEveryPlacement) {
  int legal = 0;
  constexpr Placement kPlacements[] = {Placement::kReplicate, Placement::kShard, Placement::kPartial};
  for (Placement weight : kPlacements) {
    for (Placement gradient : kPlacements) {
      for (Placement optimizer : kPlacements) {
        const PlacementTriple triple = {weight, gradient, optimizer};
        const std::string message = message_of([&] { EXPECT_EQ(placements(strategy_of(triple)), triple); });
        if (message == "no error") {
          ++legal;
        } else {
          EXPECT_NE(message.find("optim_grads (replicate, shard, shard)"), std::string::npos) << message;
        }
      }
    }
  }
  EXPECT_EQ(legal, 4);
}

TEST(Strategy, TraitsFollowFromPlacements) {
  for (Strategy strategy : kAll) {
    const PlacementTriple triple = placements(strategy);
    const StrategyTraits t = traits(strategy);
    EXPECT_EQ(t.shards_main_weight, triple.optimizer == Placement::kShard);
    EXPECT_EQ(t.gather == GatherTiming::kNever, !t.shards_main_weight);
    EXPECT_EQ(t.gather == GatherTiming::kPerForwardAndBackward, triple.weight == Placement::kShard);
    EXPECT_EQ(t.reshard_after_forward, triple.weight == Placement::kShard);
    EXPECT_EQ(t.reduce == ReduceKind::kReduceScatter, t.shards_main_weight);
    EXPECT_EQ(t.reduce_timing == ReduceTiming::kEveryMicrobatch, triple.gradient == Placement::kShard);
  }
}

}  // namespace
}  // namespace fsdp
