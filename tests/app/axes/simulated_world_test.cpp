// `fsdp train --simulate-world`: one rank of many, beside what `fsdp plan` says of such a world.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/app/training_fixture.h"

namespace fsdp::app::simulated_world_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Counts of the last step, as the run tells them.
struct Traffic {
  int64_t gathers = 0, reduces = 0, gather_bytes = 0, reduce_bytes = 0;
};

int64_t number(std::string text) {
  std::erase(text, ',');
  return std::stoll(text);
}

class SimulatedWorld : public TrainingFixture {
 protected:
  std::string simulate(const std::string& more) const {
    return train("--simulate-world 16 --simulate-steps=3 --train.batch_sequences=32 --data.sequence_length=16 " + more);
  }

  Traffic run(const std::string& more) {
    const CommandResult result = run_fsdp(simulate(more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("step 3/3: ")) << result.out;
    const std::regex line(
        "last step: ([0-9,]+) \\(planned \\1\\) gathers, ([0-9,]+) \\(planned \\2\\) reductions; received ([0-9,]+) "
        "\\(planned \\3\\) bytes of weights, ([0-9,]+) \\(planned \\4\\) of gradients");
    std::smatch found;
    EXPECT_TRUE(std::regex_search(result.out, found, line)) << result.out;
    for (const char* part : {"weights", "gradients", "optimizer", "buffers"}) {
      EXPECT_TRUE(std::regex_search(result.out, std::regex(std::string(part) + " [0-9.]+ [KMG]?i?B \\(\\+0.00 %\\)")))
          << part << "\n"
          << result.out;
    }
    return {number(found[1]), number(found[2]), number(found[3]), number(found[4])};
  }

  void expect_as_planned(const std::string& more) {
    SCOPED_TRACE(more);
    const Traffic real = run(more);
    const CommandResult result =
        run_fsdp("plan " + path("run.toml") +
                 " --world 16 --transport gloo --json --train.batch_sequences=32 --data.sequence_length=16 " + more);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto planned = nlohmann::json::parse(result.out).at("traffic");
    EXPECT_EQ(real.gathers, planned.at("gathers").get<int64_t>());
    EXPECT_EQ(real.reduces, planned.at("reduces").get<int64_t>());
    EXPECT_EQ(real.gather_bytes, planned.at("gather_bytes").get<int64_t>());
    EXPECT_EQ(real.reduce_bytes, planned.at("reduce_bytes").get<int64_t>());
  }

  void expect_refusal(const std::string& arguments, const std::string& part,
                      const std::vector<std::string>& environment = {}) {
    const CommandResult result = run_fsdp(arguments, environment);
    EXPECT_EQ(result.exit_code, 2) << arguments << result.out;
    EXPECT_THAT(result.err, HasSubstr(part)) << arguments;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
};

TEST_F(SimulatedWorld, MovesWhatAPlanOfThatWorldSays) {
  expect_as_planned("");
  expect_as_planned("--shard.precision=bf16");
  expect_as_planned("--shard.strategy=no_shard");
  expect_as_planned("--shard.strategy=optim --train.microbatch_sequences=1");
  expect_as_planned("--shard.strategy=optim_grads --shard.precision=bf16");
  expect_as_planned("--shard.strategy=hybrid --shard.replicas=4");
  expect_as_planned("--shard.strategy=hybrid_zero2 --shard.replicas=2 --train.microbatch_sequences=1");
  expect_as_planned("--shard.strategy=hybrid_optim --shard.replicas=2 --shard.precision=bf16");
}

TEST_F(SimulatedWorld, SaysWhatItIsAndWritesNothing) {
  const CommandResult result =
      run_fsdp(simulate("--checkpoint.every_steps=2 --resume=auto --train.eval_every=1 --simulate-latency-us=5 "
                        "--simulate-bandwidth-gbps 100"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("left out: checkpoint.resume, checkpoint.every_steps, train.eval_every"));
  EXPECT_THAT(result.out, HasSubstr("rank 0 of 16 ranks, the others of which do not exist; between them 100 Gb/s and "
                                    "5 us (as told)"));
  EXPECT_THAT(result.out, HasSubstr("losses and weights mean nothing"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("plan: a step takes [0-9.]+ ms on this machine: "));
  EXPECT_THAT(result.out, ::testing::ContainsRegex(
                              "plan: a step took [0-9.]+ ms .[+-][0-9.]+ % of the [0-9.]+ planned on this mach"));
  EXPECT_THAT(result.out, HasSubstr("peak memory: "));
  EXPECT_FALSE(contains(result.out, "loss ")) << result.out;
  EXPECT_FALSE(fs::exists(path("out")));
  const CommandResult named = run_fsdp(simulate("--simulate-hardware h100-sxm"));
  ASSERT_EQ(named.exit_code, 0) << named.err;
  EXPECT_THAT(named.out, HasSubstr("(h100-sxm)"));
}

// A transfer cannot be shorter than its latency: with one of a tenth of a second every gather is waited for that long.
TEST_F(SimulatedWorld, TheNetworkTakesItsTime) {
  const CommandResult result = run_fsdp(simulate("--simulate-latency-us=100000 --shard.prefetch_depth=0"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::regex line("exposed: gathers ([0-9.]+) ms"), planned("of the ([0-9.]+) planned on");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(result.out, found, planned)) << result.out;
  EXPECT_GE(std::stod(found[1]), 8 * 100);
  ASSERT_TRUE(std::regex_search(result.out, found, line)) << result.out;
  // Root and four blocks in the forward, and of the blocks all but the last again.
  EXPECT_GE(std::stod(found[1]), 8 * 100);
}

TEST_F(SimulatedWorld, WhatMakesNoSenseIsRefusedByName) {
  expect_refusal(train("--simulate-world 10 --shard.replicas=4"), "expected a multiple of it: 8 or 12.");
  expect_refusal(train("--simulate-world 1"), "expected 2 to 16384 ranks");
  expect_refusal(train("--simulate-world 16"), "expected a multiple of 16");
  expect_refusal(train("--simulate-world many"), "--simulate-world: got 'many', expected a number");
  expect_refusal(train("--simulate-world 8 --simulate-steps 2"), "expected at least 3");
  expect_refusal(train("--simulate-world"), "write --simulate-world=VALUE");
  expect_refusal(train("--simulate-latency-us 5"), "--simulate-latency-us without --simulate-world");
  expect_refusal(train("--simulate-size 8"), "unknown option '--simulate-size', expected one of --simulate-world");
  expect_refusal(train("--simulate-world 8 --simulate-bandwidth-gbps 0"), "expected a number of at least 0.001");
  expect_refusal(train("--simulate-world 8 --simulate-hardware h1000"), "h100-sxm");
  expect_refusal(train("--simulate-world 8 --dry-run"), "got --dry-run and --simulate-world");
  expect_refusal(train("--simulate-world 8"), "got a job of 2 ranks",
                 {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"});
  expect_refusal(train("--simulate-world 8 --shard.strategy=hybrid --train.batch_sequences=x"),
                 "train.batch_sequences");
  EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
}  // namespace fsdp::app::simulated_world_test
