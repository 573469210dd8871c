// `fsdp train` in each precision: against another one, through checkpoints, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/app/train/loop_fixture.h"

namespace fsdp::app {
namespace {

class Fp16 : public Loop {
 protected:
  std::string half(const std::string& folder, const std::string& more = "") const {
    return run(folder, "--shard.precision=fp16 " + more);
  }
};

TEST_F(Fp16, FollowsFp32) {
  const std::string steps = "--train.steps=40 ";
  ASSERT_EQ(launch_fsdp(2, run("wide", steps)).exit_code, 0);
  const Lines expected = ledger("wide");
  EXPECT_FALSE(expected.front().contains("loss_scale"));
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    const std::string folder = std::string("half_") + strategy;
    const CommandResult result = launch_fsdp(2, half(folder, steps + "--shard.strategy=" + strategy));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(contains(result.out, " scale 65536 | ")) << result.out;
    const Lines actual = ledger(folder);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t step = 0; step < actual.size(); ++step) {
      const double loss = number(expected[step]["loss"]);
      EXPECT_NEAR(number(actual[step]["loss"]), loss, 0.05 * loss) << strategy << ", step " << step;
      EXPECT_EQ(actual[step]["loss_scale"], 65536);
    }
    EXPECT_NEAR(number(actual.back()["grad_norm"]), number(expected.back()["grad_norm"]),
                0.1 * number(expected.back()["grad_norm"]));
  }
}

// A gradient that is not finite on one rank is no reason to compute again or to stop: the step is skipped on all and
// the scale halved, which checkpoints remember, also for another number of ranks.
TEST_F(Fp16, OverflowsAreSkippedAndTheScaleIsResumed) {
  const std::string overflow = "FSDP_FAULT=inject@value.grad:rank=1:hit=3";
  const std::string steps = "--train.steps=8 ";
  const CommandResult whole = launch_fsdp(2, half("whole", steps), {overflow});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_TRUE(contains(whole.out, "step 3 skipped: gradients overflowed at loss scale 65536, which is 32768 now"))
      << whole.out;
  EXPECT_TRUE(contains(whole.out, " scale 32768 (1 skipped) | ")) << whole.out;
  const Lines lines = ledger("whole");
  ASSERT_EQ(lines.size(), 8u);
  for (size_t step = 0; step < lines.size(); ++step) {
    EXPECT_EQ(lines[step]["loss_scale"], step < 3 ? 65536 : 32768) << step;
    EXPECT_EQ(lines[step].value("skipped", false), step == 2) << step;
  }
  ASSERT_EQ(launch_fsdp(2, half("parts", steps), {overflow + ";term@step.end:hit=4"}).exit_code, 75);
  std::filesystem::copy(path("parts"), path("elastic"), std::filesystem::copy_options::recursive);
  ASSERT_EQ(launch_fsdp(2, half("parts", steps)).exit_code, 0);
  expect_same("parts", "whole");
  const CommandResult alone = launch_fsdp(1, half("elastic", steps));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const Lines elastic = ledger("elastic");
  ASSERT_EQ(elastic.size(), 8u);
  for (size_t step = 3; step < elastic.size(); ++step) EXPECT_EQ(elastic[step]["loss_scale"], 32768) << step;
}

// On every scale down to 1, where there is nothing left to lower.
TEST_F(Fp16, AnOverflowThatNeverEndsNamesTheLayer) {
  std::string faults = "FSDP_FAULT=";
  for (int hit = 1; hit <= 18; ++hit) faults += "inject@value.grad:rank=1:hit=" + std::to_string(hit) + ";";
  faults.pop_back();
  const CommandResult result = launch_fsdp(2, half("never", "--train.steps=30"), {faults});
  EXPECT_EQ(result.exit_code, 6) << result.out;
  EXPECT_TRUE(contains(result.out, "step 16 skipped: gradients overflowed at loss scale 2, which is 1 now"))
      << result.out;
  EXPECT_TRUE(contains(result.err, "step 17: ") &&
              contains(result.err,
                       "not finite, computed twice, beginning with the gradient of model.embed_tokens.weight at the "
                       "lowest loss scale"))
      << result.err;
}

class PrecisionRecipes : public Loop {
 protected:
  std::string with(const std::string& precision, const std::string& folder, const std::string& more = "") const {
    return run(folder, "--train.steps=60 --model.hidden_size=64 --shard.precision=" + precision + " " + more);
  }
};

// o3 has bf16 weights, which without what rounding takes from them would stand still. The curve falls fast here, and
// where it is after a step depends on the processor's products by some percent.
TEST_F(PrecisionRecipes, OfMixedPrecisionFollowFp32) {
  ASSERT_EQ(launch_fsdp(2, with("fp32", "fp32")).exit_code, 0);
  const Lines expected = ledger("fp32");
  for (const std::string precision : {"o1", "o3"}) {
    const CommandResult result = launch_fsdp(2, with(precision, precision));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(contains(result.out, "optimizer ") && contains(result.out, "(+0.00 %) (how far")) << result.out;
    const Lines actual = ledger(precision);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t step = 0; step < actual.size(); ++step) {
      const double loss = number(expected[step]["loss"]);
      EXPECT_NEAR(number(actual[step]["loss"]), loss, 0.1 * loss) << precision << ", step " << step;
    }
    EXPECT_NE(actual.back()["loss"], expected.back()["loss"]) << precision;
  }
}

// bf16 weights, eight more bits of each, moments of 8 bits.
TEST_F(PrecisionRecipes, OfSevenBytesAParameterFollowsFp32AndItsPlan) {
  ASSERT_EQ(launch_fsdp(2, with("fp32", "fp32")).exit_code, 0);
  const double expected = number(ledger("fp32").back()["loss"]);
  for (const std::string rounding : {"nearest", "random"}) {
    const std::string more = "--optimizer.name=adamw_8bit --optimizer.weight_rounding=" + rounding;
    const CommandResult result = launch_fsdp(2, with("o3", rounding, more));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(contains(result.out, "(+0.00 %) (how far")) << result.out;
    EXPECT_NEAR(number(ledger(rounding).back()["loss"]), expected, 0.05 * expected) << rounding;
  }
}

TEST_F(PrecisionRecipes, OfMixedPrecisionGoOnFromCheckpoints) {
  for (const std::string precision : {"o1", "o3"}) {
    ASSERT_EQ(launch_fsdp(2, with(precision, "whole")).exit_code, 0);
    ASSERT_EQ(launch_fsdp(2, with(precision, "parts"), {"FSDP_FAULT=term@step.end:hit=20"}).exit_code, 75);
    ASSERT_EQ(launch_fsdp(2, with(precision, "parts")).exit_code, 0);
    expect_same("parts", "whole");
    std::filesystem::remove_all(path("whole"));
    std::filesystem::remove_all(path("parts"));
  }
}

TEST_F(PrecisionRecipes, OfOtherWeightsAreRefusedByName) {
  ASSERT_EQ(launch_fsdp(1, with("bf16", "wide"), {"FSDP_FAULT=term@step.end:hit=5"}).exit_code, 75);
  const CommandResult to_o3 = launch_fsdp(1, with("o3", "wide"));
  EXPECT_NE(to_o3.exit_code, 0);
  EXPECT_TRUE(contains(to_o3.err, "shard.precision: got a checkpoint of bf16, expected one of o3")) << to_o3.err;
  const CommandResult to_o1 = launch_fsdp(1, with("o1", "wide"));
  EXPECT_EQ(to_o1.exit_code, 0) << to_o1.err;
  EXPECT_TRUE(contains(to_o1.out, "shard.precision was \"bf16\", is \"o1\"")) << to_o1.out;
  ASSERT_EQ(launch_fsdp(1, with("o3", "narrow"), {"FSDP_FAULT=term@step.end:hit=5"}).exit_code, 75);
  const CommandResult to_bf16 = launch_fsdp(1, with("bf16", "narrow"));
  EXPECT_TRUE(contains(to_bf16.err, "got a checkpoint of o3, expected one of bf16")) << to_bf16.err;
}

TEST_F(PrecisionRecipes, DoNotGoWithEverything) {
  for (const auto& [options, text] : std::vector<std::pair<std::string, std::string>>{
           {"--optimizer.name=muon", "got o3 with optimizer.name = \"muon\""},
           {"--optimizer.weight_rounding=random", "got o3 with optimizer.weight_rounding = \"random\""},
           {"--optimizer.muon_per_head=true", "optimizer.muon_per_head: got true"},
           {"--train.world_invariant=true", "got o3 with train.world_invariant"},
           {"--mesh.tp=2", "got o3 with mesh.tp = 2"}}) {
    const CommandResult result = launch_fsdp(2, with("o3", "refused", options));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_TRUE(contains(result.err, text)) << result.err;
  }
}

class Fp8 : public Loop {
 protected:
  std::string quarter(const std::string& folder, const std::string& more = "") const {
    return run(folder, kSizes + "--shard.precision=fp8 --shard.fp8_keep=first " + more);
  }
  CommandResult refused(const std::string& more) const { return launch_fsdp(1, quarter("refused", more)); }

  inline static const std::string kSizes = "--train.steps=40 --model.hidden_size=64 --model.ffn_size=128 ";
};

TEST_F(Fp8, FollowsBf16) {
  ASSERT_EQ(launch_fsdp(2, run("bf16", kSizes + "--shard.precision=bf16")).exit_code, 0);
  const Lines expected = ledger("bf16");
  for (const std::string recipe : {"tensorwise", "rowwise", "mxfp8", "delayed"}) {
    const CommandResult result = launch_fsdp(2, quarter(recipe, "--shard.fp8_recipe=" + recipe));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Lines actual = ledger(recipe);
    ASSERT_EQ(actual.size(), expected.size());
    bool differs = false;
    for (size_t step = 0; step < actual.size(); ++step) {
      const double loss = number(expected[step]["loss"]);
      EXPECT_NEAR(number(actual[step]["loss"]), loss, 0.05 * loss) << recipe << ", step " << step;
      differs = differs || actual[step]["loss"] != expected[step]["loss"];
    }
    EXPECT_TRUE(differs) << recipe;
  }
}

// Scales are made anew at each product, so that nothing of fp8 is to be saved.
TEST_F(Fp8, GoesOnFromACheckpoint) {
  ASSERT_EQ(launch_fsdp(2, quarter("whole")).exit_code, 0);
  ASSERT_EQ(launch_fsdp(2, quarter("parts"), {"FSDP_FAULT=term@step.end:hit=20"}).exit_code, 75);
  ASSERT_EQ(launch_fsdp(2, quarter("parts")).exit_code, 0);
  expect_same("parts", "whole");
}

// Delayed scales are part of a checkpoint; a run of another recipe begins without.
TEST_F(Fp8, DelayedScalesAreResumed) {
  const std::string recipe = "--shard.fp8_recipe=delayed ";
  ASSERT_EQ(launch_fsdp(2, quarter("whole", recipe)).exit_code, 0);
  ASSERT_EQ(launch_fsdp(2, quarter("parts", recipe), {"FSDP_FAULT=term@step.end:hit=20"}).exit_code, 75);
  std::filesystem::copy(path("parts"), path("other"), std::filesystem::copy_options::recursive);
  ASSERT_EQ(launch_fsdp(2, quarter("parts", recipe)).exit_code, 0);
  expect_same("parts", "whole");
  EXPECT_EQ(launch_fsdp(2, quarter("other", "--shard.fp8_recipe=tensorwise")).exit_code, 0);
}

// Weights that travel as fp8 numbers change nothing, and checkpoints know nothing of it.
TEST_F(Fp8, GathersOfFp8NumbersHaveTheSameBits) {
  const std::string recipe = "--shard.fp8_recipe=tensorwise ", gather = "--shard.fp8_gather=true ";
  const std::vector<std::string> two_level = {"FSDP_TRANSPORT=gloo"};
  ASSERT_EQ(launch_fsdp(2, quarter("bf16_on_the_wire", recipe)).exit_code, 0);
  const CommandResult result = launch_fsdp(2, quarter("whole", recipe + gather), two_level);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "buffers") && contains(result.out, "(+0.00 %) (how far")) << result.out;
  EXPECT_TRUE(weights("whole") == weights("bf16_on_the_wire"));
  ASSERT_EQ(
      launch_fsdp(2, quarter("parts", recipe + gather), {two_level[0], "FSDP_FAULT=term@step.end:hit=20"}).exit_code,
      75);
  ASSERT_EQ(launch_fsdp(2, quarter("parts", recipe), two_level).exit_code, 0);
  EXPECT_TRUE(weights("parts") == weights("whole"));
}

TEST_F(Fp8, RefusesWhatItCannotDo) {
  for (const auto& [options, text] : std::vector<std::pair<std::string, std::string>>{
           {"--shard.fp8_recipe=blockwise", "got blockwise, which needs multiples of 128"},
           {"--shard.fp8_keep=q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
            "keeps every linear map of the 4 blocks in bf16"},
           {"--shard.fp8_gather=true", "got it with shard.fp8_recipe = \"rowwise\""},
           {"--shard.fp8_keep=up", "got up, expected some of q_proj"},
           {"--shard.precision=bf16", "got them with shard.precision = \"bf16\", expected \"fp8\""}}) {
    const CommandResult result = refused(options);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_TRUE(contains(result.err, text)) << result.err;
  }
}

}  // namespace
}  // namespace fsdp::app
