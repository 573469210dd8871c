// `fsdp bench strategies`.
#include <gtest/gtest.h>

#include "tests/app/training_fixture.h"

namespace fsdp::app::bench_test {
namespace {

namespace fs = std::filesystem;

class BenchVerb : public TrainingFixture {};

TEST_F(BenchVerb, ComparesStrategies) {
  const CommandResult result =
      run_fsdp("bench strategies " + path("run.toml") + " --steps 8 --json --svg " + path("s.svg"));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto answer = nlohmann::json::parse(result.out);
  ASSERT_EQ(answer["strategies"].size(), 4U);
  double held_before = 1e18;
  for (const auto& run : answer["strategies"]) {
    EXPECT_EQ(run["losses"].size(), 8U);
    EXPECT_LT(run["largest_loss_difference"], 1e-3) << run;
    EXPECT_GT(run["step_ms"], 0);
    EXPECT_LE(run["held_bytes"], held_before) << run["strategy"];
    held_before = run["held_bytes"];
    EXPECT_EQ(run["received_bytes"], run["planned_received_bytes"]) << run["strategy"];
  }
  EXPECT_LT(answer["strategies"][3]["held_bytes"], answer["strategies"][0]["held_bytes"]);
  EXPECT_TRUE(contains(io::read_text(path("s.svg")), "zero3"));
  EXPECT_FALSE(fs::exists(path("out"))) << "the run's own folder is not touched";
}

// Its runs have no checkpoints, and so nothing to go back to.
TEST_F(BenchVerb, TakesConfigurationsThatRollBack) {
  std::ofstream(path("run.toml"), std::ios::app) << "[checkpoint]\nevery_steps = 2\n";
  const CommandResult result =
      run_fsdp("bench strategies " + path("run.toml") +
               " --steps 4 --json --train.on_spike=rollback --train.on_nonfinite=rollback --strategies zero3");
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["strategies"][0]["losses"].size(), 4U) << result.out;
}

TEST_F(BenchVerb, TellsWhatFailed) {
  const CommandResult result = run_fsdp("bench strategies " + path("run.toml") + " --steps 4 --strategies zero9");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(contains(result.out, "zero9")) << result.out;
  EXPECT_TRUE(contains(result.out, "failed: exit code 2")) << result.out;
  EXPECT_EQ(run_fsdp("bench").exit_code, 2);
  EXPECT_EQ(run_fsdp("bench strategies").exit_code, 2);
}

}  // namespace
}  // namespace fsdp::app::bench_test
