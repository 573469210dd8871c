// train.ema as a user sees it: averages of the weights beside a run that is none the wiser.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/app/train/loop_fixture.h"

namespace fsdp::app {
namespace {

const char* const kAverages = "--train.ema=0.7 --train.steps=8 --checkpoint.every_steps=4 ";

class Averages : public Loop {
 protected:
  std::string averaged(const std::string& folder) const {
    return read_file(path(folder) + "/model_ema/model.safetensors");
  }
  double heldout(const std::string& folder) const {
    return read_lines(path(folder) + "/metrics.jsonl").back().at("heldout").at("loss").get<double>();
  }
};

TEST_F(Averages, DisturbNothingAndComeBackBitForBit) {
  for (const char* options :
       {"", "--shard.precision=bf16 --shard.strategy=optim", "--optimizer.name=muon", "--shard.offload=disk"}) {
    SCOPED_TRACE(options);
    for (const char* folder : {"plain", "whole", "parts"}) std::filesystem::remove_all(path(folder));
    const std::string more = std::string(kAverages) + options;
    ASSERT_EQ(launch_fsdp(2, run("plain", more + " --train.ema=0")).exit_code, 0);
    const CommandResult whole = launch_fsdp(2, run("whole", more));
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    expect_same("whole", "plain");
    EXPECT_FALSE(averaged("whole") == weights("whole"));
    EXPECT_FALSE(std::filesystem::exists(path("plain") + "/model_ema"));
    const size_t optimizer = whole.out.find(", optimizer ", whole.out.find("plan: this rank holds"));
    ASSERT_NE(optimizer, std::string::npos) << whole.out;
    EXPECT_TRUE(contains(whole.out.substr(optimizer, 40), "(+0.00 %)")) << whole.out.substr(optimizer, 40);
    ASSERT_EQ(launch_fsdp(2, run("parts", more), {"FSDP_FAULT=kill@step.begin:hit=7"}).exit_code, 137);
    ASSERT_EQ(launch_fsdp(2, run("parts", more)).exit_code, 0);
    expect_same("parts", "whole");
    EXPECT_TRUE(averaged("parts") == averaged("whole"));
  }
}

TEST_F(Averages, AreEvaluatedAndExported) {
  const std::string by_them = std::string(kAverages) + "--train.eval_weights=ema --train.eval_every=3 ";
  const CommandResult result = launch_fsdp(2, run("run", by_them));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "held out after step 8, averaged weights: loss ")) << result.out;
  EXPECT_EQ(read_lines(path("run") + "/metrics.jsonl").back().at("heldout").at("weights"), "ema");
  ASSERT_EQ(launch_fsdp(2, run("plain", by_them + "--train.eval_weights=trained --train.ema=0")).exit_code, 0);
  expect_same("run", "plain");
  EXPECT_GT(std::abs(heldout("run") - heldout("plain")), 1e-5);
  // What is evaluated is what is given away, at the end and of the last checkpoint.
  const std::string still = "--train.lr=0 --train.steps=1 --train.warmup_steps=0 --model.path=";
  ASSERT_EQ(run_fsdp(run("still", still + path("run") + "/model_ema")).exit_code, 0);
  EXPECT_NEAR(heldout("still"), heldout("run"), 1e-5);
  const std::string checkpoint = path("run") + "/checkpoints/step-8";
  ASSERT_EQ(run_fsdp("export " + checkpoint + " --ema --out " + path("exported")).exit_code, 0);
  EXPECT_TRUE(read_file(path("exported") + "/model.safetensors") == averaged("run"));
  ASSERT_EQ(run_fsdp("export " + checkpoint + " --out " + path("trained")).exit_code, 0);
  EXPECT_TRUE(read_file(path("trained") + "/model.safetensors") == weights("run"));
  // On other ranks the averages go on.
  std::filesystem::copy(path("run"), path("elastic"), std::filesystem::copy_options::recursive);
  const CommandResult more = launch_fsdp(1, run("elastic", by_them + "--train.steps=9 --train.schedule=constant"));
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_NEAR(heldout("elastic"), heldout("run"), 0.1);
}

// What is evaluated, exported and read from a checkpoint is the average, and looking at it changes nothing.
TEST_F(Averages, ScheduleFreeGivesItsOwn) {
  const std::string common =
      "--optimizer.name=schedule_free --train.schedule=constant --train.steps=8 --checkpoint.every_steps=4 ";
  const CommandResult result = launch_fsdp(2, run("run", common + "--train.eval_every=3 "));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "held out after step 8, averaged weights: loss ")) << result.out;
  EXPECT_EQ(read_lines(path("run") + "/metrics.jsonl").back().at("heldout").at("weights"), "average");
  const size_t optimizer = result.out.find(", optimizer ", result.out.find("plan: this rank holds"));
  ASSERT_NE(optimizer, std::string::npos) << result.out;
  EXPECT_TRUE(contains(result.out.substr(optimizer, 40), "(+0.00 %)")) << result.out.substr(optimizer, 40);
  ASSERT_EQ(launch_fsdp(2, run("unseen", common)).exit_code, 0);
  expect_same("run", "unseen");
  const std::string still = "--train.lr=0 --train.steps=1 --train.warmup_steps=0 --model.path=";
  ASSERT_EQ(run_fsdp("export " + path("run") + "/checkpoints/step-8 --out " + path("exported")).exit_code, 0);
  for (const char* source : {"run/model", "exported"}) {
    ASSERT_EQ(run_fsdp(run("still", still + path(source))).exit_code, 0) << source;
    EXPECT_NEAR(heldout("still"), heldout("run"), 1e-5) << source;
    std::filesystem::remove_all(path("still"));
  }
  const CommandResult cosine = run_fsdp(run("no", "--optimizer.name=schedule_free"));
  EXPECT_TRUE(contains(cosine.err, "train.schedule: got \"cosine\" with optimizer.name = \"schedule_free\""))
      << cosine.err;
  const CommandResult both = run_fsdp(run("no", common + "--train.ema=0.9"));
  EXPECT_TRUE(contains(both.err, "train.ema: got averages with optimizer.name = \"schedule_free\"")) << both.err;
  const CommandResult disk = run_fsdp(run("no", common + "--shard.offload=disk"));
  EXPECT_TRUE(contains(disk.err, "shard.offload: got \"disk\" with optimizer.name = \"schedule_free\"")) << disk.err;
}

TEST_F(Averages, AreRefusedWhereThereAreNone) {
  ASSERT_EQ(run_fsdp(run("plain", "--checkpoint.every_steps=6")).exit_code, 0);
  const auto expect_refusal = [](const CommandResult& result, const std::string& part) {
    EXPECT_NE(result.exit_code, 0);
    EXPECT_TRUE(contains(result.err, part)) << result.err;
  };
  expect_refusal(run_fsdp("export " + path("plain") + "/checkpoints/step-6 --ema --out " + path("x")),
                 "got a checkpoint without averages of weights");
  expect_refusal(run_fsdp("export " + path("plain") + "/model --ema --out " + path("x")), "--ema: got ");
  expect_refusal(run_fsdp(run("o3", "--train.ema=0.9 --shard.precision=o3")), "train.ema");
  // Averages that a run had not before begin with it, and the run says so.
  const CommandResult later = run_fsdp(run("plain", "--train.steps=8 --train.ema=0.9"));
  ASSERT_EQ(later.exit_code, 0) << later.err;
  EXPECT_TRUE(contains(later.out, "checkpoint: train.ema was 0.0, is 0.9")) << later.out;
}

}  // namespace
}  // namespace fsdp::app
