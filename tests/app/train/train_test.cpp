// `fsdp train` and `fsdp generate` end to end, alone and as several ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/app/metrics.h"
#include "tests/app/training_fixture.h"
#include "train/config/config_file.h"

namespace fsdp::app {
namespace {

using Train = TrainingFixture;

TEST_F(Train, WritesWhatItPromises) {
  const CommandResult result = run_fsdp(train("--train.eval_every=3 --train.eval_batches=1"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "step 6/6 loss ")) << result.out;
  EXPECT_TRUE(contains(result.out, "held out after step 3: ")) << result.out;
  EXPECT_TRUE(contains(result.out, "bits per byte")) << result.out;
  EXPECT_FALSE(contains(result.out, "\x1b")) << "control characters without a terminal";
  const auto metrics = read_metrics(path("out"));
  ASSERT_EQ(metrics.size(), 8u);  // 6 steps, 2 evaluations
  EXPECT_EQ(metrics[0].at("step"), 1);
  EXPECT_EQ(metrics[0].at("tokens"), 8 * 32);
  EXPECT_NEAR(metrics[0].at("loss").get<double>(), std::log(259), 0.5);
  EXPECT_GT(metrics[0].at("memory").at("resident_bytes").get<int64_t>(), 1 << 20);
  // The stored configuration repeats the run.
  const train::Config config = train::load_config(path("out") + "/config.toml", {});
  EXPECT_EQ(config.train.steps, 6);
  EXPECT_EQ(config.data.path, path("data"));
  for (const char* file : {"config.json", "model.safetensors", "fsdp_tokenizer.json"}) {
    EXPECT_TRUE(std::filesystem::exists(path("out") + "/model/" + file)) << file;
  }
}

TEST_F(Train, AnyNumberOfRanksSeesTheSameBatches) {
  ASSERT_EQ(run_fsdp(train("--train.steps=100 --output.folder=" + path("one"))).exit_code, 0);
  const auto expected = losses(path("one"));
  ASSERT_EQ(expected.size(), 100u);
  const std::map<int, std::string> runs = {{2, "--train.microbatch_sequences=2"},
                                           {4, "--train.recompute=block --train.recompute_every=2"},
                                           {8, "--shard.strategy=optim"}};
  for (const auto& [ranks, more] : runs) {
    const std::string folder = path("ranks" + std::to_string(ranks));
    const CommandResult result = launch_fsdp(ranks, train("--train.steps=100 --output.folder=" + folder + " " + more));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto actual = losses(folder);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(actual[step], expected[step], 1e-5 * expected[step]) << ranks << " ranks, step " << step;
    }
    EXPECT_NEAR(heldout(folder), heldout(path("one")), 1e-5 * heldout(path("one"))) << ranks << " ranks";
  }
}

TEST_F(Train, SameSeedGivesTheSameRunAnotherSeedAnother) {
  for (const char* run : {"a --train.seed=5", "b --train.seed=5", "c --train.seed=6"}) {
    ASSERT_EQ(run_fsdp(train("--output.folder=" + path(run))).exit_code, 0);
  }
  EXPECT_EQ(losses(path("a")), losses(path("b")));
  EXPECT_NE(losses(path("a")), losses(path("c")));
}

TEST_F(Train, GoesOnFromAWrittenModel) {
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    const std::string first = path("first_" + precision);
    ASSERT_EQ(launch_fsdp(2, train("--shard.precision=" + precision + " --output.folder=" + first)).exit_code, 0);
    const std::string second = path("second_" + precision);
    const CommandResult result =
        launch_fsdp(3, train("--model.path=" + first + "/model --train.batch_sequences=9 --train.lr=0 " +
                             "--shard.precision=" + precision + " --output.folder=" + second));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NEAR(heldout(first), heldout(second), precision == "fp32" ? 1e-6 : 1e-3);
  }
}

TEST_F(Train, StopsByTheClock) {
  const CommandResult result =
      launch_fsdp(2, train("--train.steps=1000000 --train.log_every=1000 --train.max_minutes=0.05"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(result.seconds, 60);
  EXPECT_TRUE(std::filesystem::exists(path("out") + "/model/model.safetensors"));
}

TEST_F(Train, FitsStepsIntoTheTime) {
  const std::string clock = "--train.steps=1000000 --train.warmup_steps=20 --train.fit_minutes=0.05";
  const CommandResult result = launch_fsdp(2, train(clock));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "steps fit into the time asked for")) << result.out;
  const train::Config config = train::load_config(path("out") + "/config.toml", {});
  EXPECT_EQ(config.train.fit_minutes, 0);
  const auto expected = losses(path("out"));
  EXPECT_EQ(static_cast<int64_t>(expected.size()), config.train.steps);
  // The stored configuration repeats the run, learning rate included.
  ASSERT_EQ(launch_fsdp(2, "train " + path("out") + "/config.toml --output.folder=" + path("again")).exit_code, 0);
  EXPECT_EQ(losses(path("again")), expected);
}

TEST_F(Train, StepsThatFittedStayInAResumedRun) {
  const std::string clock = "--train.steps=1000000 --train.warmup_steps=20 --train.fit_minutes=1 --resume=auto";
  const CommandResult stopped = run_fsdp(train(clock), {"FSDP_FAULT=term@step.end:hit=21"});
  ASSERT_EQ(stopped.exit_code, 75) << stopped.err;
  const train::Config fitted = train::load_config(path("out") + "/config.toml", {});
  ASSERT_LT(fitted.train.steps, 1000000);
  const CommandResult resumed = run_fsdp(train(clock), {"FSDP_FAULT=term@step.end:hit=2"});
  ASSERT_EQ(resumed.exit_code, 75) << resumed.err;
  const train::Config config = train::load_config(path("out") + "/config.toml", {});
  EXPECT_EQ(config.train.steps, fitted.train.steps) << "what is written is not what runs";
  EXPECT_EQ(config.train.fit_minutes, 0);
  EXPECT_EQ(read_metrics(path("out")).back().at("steps"), fitted.train.steps);
  EXPECT_FALSE(contains(resumed.out, " was ")) << resumed.out;
  const std::string stays = "train.steps stays " + std::to_string(fitted.train.steps) +
                            ": train.fit_minutes chooses it at the end of the warm-up, which is over";
  EXPECT_TRUE(contains(resumed.out, stays)) << resumed.out;
}

TEST_F(Train, GeneratesValidUtf8Reproducibly) {
  ASSERT_EQ(run_fsdp(train()).exit_code, 0);
  const std::string command = "generate " + path("out") + "/model --prompt line --max-tokens 80 --temperature 2";
  const CommandResult first = run_fsdp(command + " --seed 3");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out.rfind("line", 0), 0u);
  EXPECT_NO_THROW(nlohmann::json(first.out).dump());  // refuses what is not UTF-8
  EXPECT_EQ(run_fsdp(command + " --seed 3").out, first.out);
  EXPECT_NE(run_fsdp(command + " --seed 4").out, first.out);
  EXPECT_EQ(run_fsdp(command + " --top-k 1").out, run_fsdp(command + " --top-k 1 --seed 9").out);
}

}  // namespace
}  // namespace fsdp::app
