#include "plan/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/base/error.h"
#include "models/config/presets.h"
#include "plan/search/limits.h"
#include "tests/support/usage.h"

namespace fsdp::plan::search_test {
namespace {

using ::testing::HasSubstr;

PlannedModel preset_model(const std::string& name) { return decoder_model(name, models::find_preset(name)->config); }

SearchSpace space_of(int64_t world, const char* memory, int64_t sequences_per_rank = 8) {
  SearchSpace space;
  space.base.shards = world;
  space.base.precision = parse_planned_precision("bf16");
  space.base.work.microbatches = sequences_per_rank;
  space.memory = parse_bytes(memory);
  space.precisions = {parse_planned_precision("bf16"), parse_planned_precision("bf16_reduce")};
  return space;
}

auto time_key(const Candidate& candidate) {
  return std::pair(candidate.price.floor.seconds(), candidate.price.floor.communication());
}

// Straight from the definition: none of the best is beaten, everything else is beaten or too large.
TEST(PlanSearch, TheBestAreThoseThatNobodyBeats) {
  const SearchSpace space = space_of(16, "40GiB");
  const SearchResult result = search(preset_model("llama-3.1-8b"), space);
  ASSERT_FALSE(result.best.empty());
  EXPECT_EQ(static_cast<size_t>(result.num_tried), result.best.size() + result.losers.size());
  const auto beats = [](const Candidate& a, const Candidate& b) {
    return time_key(a) <= time_key(b) && a.price.memory <= b.price.memory;
  };
  for (const Candidate& best : result.best) {
    EXPECT_LE(best.price.memory, space.memory);
    EXPECT_EQ(best.setup.tokens_per_step(), space.base.tokens_per_step());
    EXPECT_EQ(best.setup.world(), 16);
    for (const Candidate& other : result.best) EXPECT_FALSE(&other != &best && beats(other, best));
  }
  for (const Candidate& loser : result.losers) {
    const bool beaten =
        std::any_of(result.best.begin(), result.best.end(), [&](const Candidate& best) { return beats(best, loser); });
    EXPECT_EQ(loser.price.memory <= space.memory, loser.reason.find("no faster") == 0) << loser.reason;
    EXPECT_TRUE(beaten || loser.price.memory > space.memory) << describe(loser.setup);
  }
}

// Each candidate is a plan like any other.
TEST(PlanSearch, CandidatesArePlans) {
  const PlannedModel model = preset_model("smollm3-3b");
  const SearchSpace space = space_of(8, "80GiB");
  for (const Candidate& candidate : search(model, space).best) {
    const Report report = make_report(model, candidate.setup, space.options);
    EXPECT_EQ(report.memory.total(), candidate.price.memory);
    EXPECT_DOUBLE_EQ(step_floor(model, report, space.machine).seconds(), candidate.price.floor.seconds());
  }
}

TEST(PlanSearch, WhatFitsNowhereSaysByHowMuch) {
  const SearchSpace space = space_of(8, "80GiB");
  try {
    search(preset_model("llama-3.1-405b"), space);
    FAIL() << "405B on 8 ranks";
  } catch (const io::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("nothing fits into 80.00 GiB per rank on 8 ranks"));
    EXPECT_THAT(error.what(), HasSubstr("too much ("));
    EXPECT_THAT(error.what(), HasSubstr("recompute block"));
  }
}

TEST(PlanSearch, SeventyBillionOn1280RanksTakesSeconds) {
  SearchSpace space = space_of(1280, "80GiB", 16);
  predict_for(space, time::find_hardware("h100-sxm"));
  SearchResult result;
  const double seconds = usage::processor_seconds([&] { result = search(preset_model("llama-3.1-70b"), space); });
  std::printf("llama-3.1-70b on 1280 ranks: %ld plans in %.2f s of a processor\n", result.num_tried, seconds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which take twenty times as long
  EXPECT_LT(seconds, 30);  // 5 where no other test shares the processor's core
#endif
  EXPECT_GT(result.num_tried, 1000);
}

// With hardware: nothing among the best is beaten, or 0.5 % of time away from a smaller one.
TEST(PlanSearch, PredictedTimesRank) {
  SearchSpace space = space_of(16, "40GiB");
  predict_for(space, time::find_hardware("h100-sxm"));
  const PlannedModel model = preset_model("llama-3.1-8b");
  const SearchResult result = search(model, space);
  ASSERT_FALSE(result.best.empty());
  EXPECT_EQ(static_cast<size_t>(result.num_tried), result.best.size() + result.losers.size());
  for (size_t i = 0; i < result.best.size(); ++i) {
    const Candidate& best = result.best[i];
    ASSERT_TRUE(best.price.step);
    EXPECT_LE(best.price.memory, space.memory);
    EXPECT_GE(best.price.seconds(), best.price.floor.seconds());
    EXPECT_DOUBLE_EQ(best.price.seconds(), forecast(model, best.setup, {}, *space.hardware).seconds());
    if (i == 0) continue;
    EXPECT_GT(best.price.seconds(), result.best[i - 1].price.seconds());
    EXPECT_LT(best.price.memory, result.best[i - 1].price.memory);
  }
  for (const Candidate& loser : result.losers) {
    const bool fits = loser.price.memory <= space.memory;
    const bool beaten = std::any_of(result.best.begin(), result.best.end(), [&](const Candidate& best) {
      return best.price.seconds() <= 1.005 * loser.price.seconds() && best.price.memory <= loser.price.memory;
    });
    EXPECT_TRUE(beaten || !fits) << describe(loser.setup);
    EXPECT_FALSE(loser.reason.empty());
  }
}

TEST(PlanLimits, ShortMemoryIsNamedAndRelieved) {
  const PlannedModel model = preset_model("llama-3.1-70b");
  SearchSpace space = space_of(64, "80GiB", 1);
  const Report report = make_report(model, space.base, space.options);
  ASSERT_GT(report.memory.total(), space.memory);
  const Limits limits = find_limits(model, report, space);
  EXPECT_TRUE(limits.memory_is_short);
  EXPECT_THAT(limits.limiting, HasSubstr("the largest part is activations"));
  ASSERT_EQ(limits.knobs.size(), 3U);
  for (const Knob& knob : limits.knobs) {
    EXPECT_LT(knob.price.memory, report.memory.total());
    EXPECT_EQ(make_report(model, knob.setup, space.options).memory.total(), knob.price.memory) << knob.change;
  }
  EXPECT_LE(limits.knobs.front().price.memory, space.memory);
}

// One sequence per rank on 1,280 ranks: gathers through the network decide, and hybrid groups relieve it.
TEST(PlanLimits, TheNetworkIsNamedAndRelieved) {
  const PlannedModel model = preset_model("llama-3.1-8b");
  SearchSpace space = space_of(1280, "80GiB", 1);
  space.base.work.sequence_length = 512;
  const Report report = make_report(model, space.base, space.options);
  const Limits limits = find_limits(model, report, space);
  EXPECT_EQ(limits.price.floor.bound(), Bound::kNetwork);
  EXPECT_EQ(limits.limiting, "the network between nodes");
  ASSERT_FALSE(limits.knobs.empty());
  EXPECT_LT(limits.knobs.front().price.floor.seconds(), limits.price.floor.seconds());
  EXPECT_LE(limits.knobs.front().price.memory, space.memory);
}

// The simulation names what most of its critical path is made of: at first the network, then, with a hundred times as
// much of it, computing.
TEST(PlanLimits, TheSimulationNamesTheResource) {
  const PlannedModel model = preset_model("llama-3.1-8b");
  SearchSpace space = space_of(64, "80GiB", 1);
  const Report report = make_report(model, space.base, space.options);
  time::Hardware hardware = time::find_hardware("h100-sxm");
  hardware.network.bytes_per_second /= 10;
  hardware.network.hop_us = hardware.start_us = 0;
  predict_for(space, hardware);
  const Limits slow = find_limits(model, report, space);
  EXPECT_THAT(slow.limiting, testing::MatchesRegex("(gather|reduce) .critical path: compute .*"));
  ASSERT_GE(slow.knobs.size(), 2U);
  for (const Knob& knob : slow.knobs) EXPECT_LT(knob.price.seconds(), slow.price.seconds()) << knob.change;
  EXPECT_LE(slow.knobs[0].price.seconds(), slow.knobs[1].price.seconds());
  EXPECT_NE(slow.knobs[0].lever, slow.knobs[1].lever);
  hardware.network.bytes_per_second *= 100;
  predict_for(space, hardware);
  EXPECT_THAT(find_limits(model, report, space).limiting, testing::StartsWith("compute ("));
}

// performance.md, section 3.1: full recomputation of SmolLM3 at 8192 tokens adds 6.83 to 22.074 GF.
TEST(PlanFloor, RecomputedFlopsOfAKnownModel) {
  const models::DecoderConfig config = models::find_preset("smollm3-3b")->config;
  Work work;
  work.sequence_length = 8192;
  work.recompute = models::Recompute::kBlock;
  EXPECT_NEAR(models::flops_per_token(config, 8192) * 1e-9, 22.074, 0.001);
  EXPECT_NEAR(recomputed_flops_per_token(config, work) * 1e-9, 6.83, 0.01);
  work.recompute_every = 2;
  EXPECT_NEAR(recomputed_flops_per_token(config, work) * 1e-9, 6.83 / 2, 0.01);
  work = {};
  work.recompute = models::Recompute::kGateUp;
  EXPECT_DOUBLE_EQ(recomputed_flops_per_token(config, work), 36.0 * 2 * 2 * 2048 * 11008);
}

// 8 ranks of one node, 60 GB through links of 450 GB/s against 1 TFLOP.
TEST(PlanFloor, IsTheBusiestResource) {
  const PlannedModel model = preset_model("llama-3.1-8b");
  const SearchSpace space = space_of(8, "80GiB", 1);
  const Report report = make_report(model, space.base, space.options);
  const StepFloor floor = step_floor(model, report, {1e12, 450e9, 50e9});
  EXPECT_DOUBLE_EQ(floor.network, 0);
  EXPECT_DOUBLE_EQ(floor.node_links, static_cast<double>(report.traffic.received_bytes) / 450e9);
  EXPECT_DOUBLE_EQ(floor.compute, report.flops_per_token * 4096 / 1e12);
  EXPECT_DOUBLE_EQ(floor.seconds(), floor.compute);
  EXPECT_EQ(floor.bound(), Bound::kCompute);
}

}  // namespace
}  // namespace fsdp::plan::search_test
