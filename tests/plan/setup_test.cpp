// What a planner is told that makes no sense, and what it answers.
#include "plan/setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/complaint.h"

namespace fsdp::plan::setup_test {
namespace {

using ::testing::HasSubstr;

TEST(PlanSetup, MeshesMultiplyToTheWorld) {
  const auto expect = [](const char* text, int64_t world, int64_t replicas, int64_t shards) {
    const MeshShape mesh = parse_mesh(text, world);
    EXPECT_EQ(mesh.replicas, replicas) << text;
    EXPECT_EQ(mesh.shards, shards) << text;
  };
  expect("", 128, 1, 128);
  expect("", 0, 1, 1);
  expect("8x16", 128, 8, 16);
  expect("shard=16", 128, 8, 16);
  expect("replicate=4", 128, 4, 32);
  expect("shard=16,replicate=2", 0, 2, 16);
  expect("shard=96", 96, 1, 96);
}

TEST(PlanSetup, OtherMeshesAreRefusedWithTheDivisors) {
  const std::string odd = complaint([] { parse_mesh("shard=48", 128); });
  EXPECT_THAT(odd, HasSubstr("got 48 for 128 ranks"));
  EXPECT_THAT(odd, HasSubstr("Divisors: 1, 2, 4, 8, 16, 32, 64, 128."));
  EXPECT_THAT(complaint([] { parse_mesh("4x16", 128); }), HasSubstr("got 64 for 128 ranks"));
  for (const char* nonsense : {"x", "4x", "tensor=8", "shard", "shard=0", "shard=-1", "shard=2,shard=2", "a,b"}) {
    EXPECT_THAT(complaint([&] { parse_mesh(nonsense, 128); }), HasSubstr("expected \"shard=16\"")) << nonsense;
  }
  EXPECT_THAT(complaint([] { parse_mesh("", -3); }), HasSubstr("got -3"));
}

TEST(PlanSetup, WhatTheRuntimeRefusesThePlannerRefuses) {
  plan::Setup setup;
  setup.shards = 8;
  EXPECT_NO_THROW(check(setup));
  setup.strategy = Strategy::kHybrid;
  EXPECT_THAT(complaint([&] { check(setup); }), HasSubstr("with R one of 1, 2, 4, 8 above 1"));
  setup.strategy = Strategy::kOptimGradsParams;
  setup.reshard_after_forward = int64_t{3};
  EXPECT_THAT(complaint([&] { check(setup); }), HasSubstr("expected a divisor: 1, 2, 4, 8."));
  setup.reshard_after_forward = int64_t{4};
  EXPECT_NO_THROW(check(setup));
  setup.schedule.forward_depth = -1;
  EXPECT_THAT(complaint([&] { check(setup); }), HasSubstr("[schedule] forward_depth"));
  setup.schedule = {};
  setup.work.microbatches = 0;
  EXPECT_THAT(complaint([&] { check(setup); }), HasSubstr("microbatches: got 0"));
  setup.work.microbatches = 1;
  setup.transport = Transport::kSharedMemory;
  EXPECT_NO_THROW(check(setup));
  setup.node_size = 4;
  EXPECT_THAT(complaint([&] { check(setup); }), HasSubstr("got 8 ranks on nodes of 4"));
  setup.transport = Transport::kNccl;
  setup.shards = kMostRanks + 1;
  EXPECT_THAT(complaint([&] { check(setup); }), HasSubstr("expected at most 16384"));
}

// Numbers of microbatches and tokens are multiplied, and become turns of a pipeline.
TEST(PlanSetup, StepsThatNoNumberHoldsAreRefused) {
  plan::Setup setup;
  setup.shards = 8;
  setup.pipeline = 4;
  setup.work.microbatches = kMostMicrobatches;
  EXPECT_NO_THROW(check(setup));
  setup.work.microbatches = (int64_t{1} << 32) + 8;
  EXPECT_THAT(complaint([&] { check(setup); }), HasSubstr("microbatches: got 4294967304, expected at most 1000000"));
  setup.work.microbatches = 8;
  setup.work.microbatch_sequences = int64_t{1} << 53;  // of 4096 tokens: 2^65
  EXPECT_THAT(complaint([&] { check(setup); }), HasSubstr("got 9007199254740992 sequences of 4096, expected at most"));
  setup.work.microbatches = kMostMicrobatches;
  setup.work.microbatch_sequences = kMostMicrobatchTokens / 4096;
  EXPECT_THAT(complaint([&] { check(setup); }), HasSubstr("tokens of a step: got 8 x 1000000 microbatches"));
  EXPECT_THAT(complaint([] { parse_mesh("shard=4611686018427387904,cp=4", 0); }), HasSubstr("expected at most 16384"));
}

TEST(PlanSetup, NamesAndSizesAreRead) {
  for (const char* name : {"fp32", "bf16", "bf16_reduce", "o3"})
    EXPECT_EQ(fsdp::plan::name(parse_planned_precision(name)), name);
  for (const char* name : {"adamw", "sgd", "sgd_momentum", "muon", "adafactor", "lion", "schedule_free", "adamw_8bit"})
    EXPECT_EQ(fsdp::plan::name(parse_optimizer(name)), name);
  for (const char* name : {"none", "elementwise", "gate_up", "block"})
    EXPECT_EQ(fsdp::plan::name(parse_recompute(name)), name);
  EXPECT_THAT(complaint([] { parse_planned_precision("fp8"); }), HasSubstr("expected one of fp32, bf16, bf16_reduce"));
  EXPECT_THAT(complaint([] { parse_optimizer("tiger"); }),
              HasSubstr("expected one of adamw, sgd, sgd_momentum, muon, adafactor, lion, schedule_free, adamw_8bit"));
  // Two codes and two scales a block of 256, and eight more bits of a bf16 weight.
  EXPECT_EQ(state_bytes(Optimizer::kAdamW8Bit, 1000, 4), 2000 + 4 * 8);
  EXPECT_EQ(state_bytes(Optimizer::kAdamW8Bit, 1000, 2), 3000 + 4 * 8);
  EXPECT_EQ(parse_bytes("80GiB"), int64_t{80} << 30);
  EXPECT_EQ(parse_bytes("80 GB"), 80'000'000'000);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(parse_bytes("0"), 0);
  for (const char* nonsense : {"", "GiB", "80 gigs", "-1GB", "nan", "1e30TB"})
    EXPECT_THAT(complaint([&] { parse_bytes(nonsense); }), HasSubstr("such as 80GiB")) << nonsense;
}

}  // namespace
}  // namespace fsdp::plan::setup_test
