// `fsdp plan`, `fsdp train --dry-run`, and runs beside their plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "tests/app/training_fixture.h"

namespace fsdp::app::plan_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

nlohmann::json plan_json(const std::string& arguments) {
  const CommandResult result = run_fsdp("plan " + arguments + " --json");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

void expect_refusal(const std::string& arguments, const std::string& part) {
  const CommandResult result = run_fsdp("plan " + arguments);
  EXPECT_EQ(result.exit_code, 2) << arguments << result.out;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr(part)) << arguments;
}

TEST(PlanVerb, SeventyBillionOn128And1280Ranks) {
  const auto parts = [](const std::string& arguments) { return plan_json(arguments)["memory"]["parts"]; };
  const auto few = parts("--preset llama-3.1-70b --world 128"), many = parts("--preset llama-3.1-70b --world 1280");
  EXPECT_NEAR(few["main_weight"].get<double>(), 4 * 70553706496.0 / 128, 1e5);
  EXPECT_NEAR(few["optimizer"].get<double>(), 8 * 70553706496.0 / 128, 1e5);
  EXPECT_NEAR(many["main_weight"].get<double>(), 4 * 70553706496.0 / 1280, 1e5);
}

TEST(PlanVerb, NonsenseIsRefusedWithWhatIsLegal) {
  const std::string model = "--preset llama-3.1-8b ";
  expect_refusal("", "got no model");
  expect_refusal("--preset lama-3.1-8b", "did you mean llama-3.1-8b?");
  expect_refusal(model + "--world 100 --mesh shard=48", "Divisors: 1, 2, 4, 5, 10, 20, 25, 50, 100.");
  expect_refusal(model + "--worl 8", "did you mean --world?");
  expect_refusal(model + "--world 8 --strategy hybrid", "it needs an axis 'replicate'");
  expect_refusal(model + "--world 8 --strategy zero4", "Did you mean 'zero0'?");
  expect_refusal(model + "--precision fp8", "expected one of fp32, bf16, bf16_reduce");
  expect_refusal(model + "--memory much", "such as 80GiB");
  expect_refusal(model + "--fit", "expected --memory");
  expect_refusal(model + "--world 20000", "expected at most 16384");
  expect_refusal(model + "--model x", "got several models");
  expect_refusal("--preset llama-3.1-405b --world 8 --memory 80GiB --fit", "nothing fits into 80.00 GiB");
  expect_refusal("--model.preset=llama-3.1-8b --train.batch_sequences=10 --world 8", "Set it to 16.");
}

TEST(PlanVerb, SearchesAndExplains) {
  const nlohmann::json fit = plan_json("--preset smollm3-3b --world 8 --memory 80GiB --fit");
  ASSERT_FALSE(fit["best"].empty());
  for (const auto& best : fit["best"]) EXPECT_LE(best["memory"].get<int64_t>(), int64_t{80} << 30);
  const nlohmann::json why = plan_json("--preset llama-3.1-70b --world 64 --memory 80GiB --why");
  EXPECT_FALSE(why["fits"].get<bool>());
  EXPECT_EQ(why["why"]["knobs"].size(), 3U);
}

class PlannedRun : public TrainingFixture {
 protected:
  // What the run said of part after part: how far it is from the plan, in percent.
  void expect_as_planned(const CommandResult& result) {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const std::regex difference("(weights|gradients|optimizer|buffers) [0-9.]+ [KMG]?i?B \\(([+-][0-9.]+) %\\)");
    int found = 0;
    for (std::sregex_iterator i(result.out.begin(), result.out.end(), difference), end; i != end; ++i, ++found)
      EXPECT_LE(std::abs(std::stod((*i)[2])), 2) << i->str();
    EXPECT_EQ(found, 4) << result.out;
  }
};

TEST_F(PlannedRun, HoldsWhatWasPlanned) {
  expect_as_planned(run_fsdp(train()));
  for (const char* more : {"--shard.precision=bf16", "--shard.strategy=optim --train.microbatch_sequences=1",
                           "--shard.strategy=hybrid_zero2 --shard.replicas=2 --train.recompute=block"}) {
    fs::remove_all(path("out"));
    SCOPED_TRACE(more);
    expect_as_planned(launch_fsdp(4, train(more)));
  }
  fs::remove_all(path("out"));
  expect_as_planned(launch_fsdp(2, train("--shard.precision=bf16"), {"FSDP_TRANSPORT=gloo"}));
}

TEST_F(PlannedRun, OfFrozenPartsToo) {
  for (const char* more : {"--tune.frozen=model.layers.0.*,model.layers.1.*", "--tune.frozen=model.embed_tokens.*",
                           "--tune.trained=model.layers.2.mlp.*"}) {
    fs::remove_all(path("out"));
    SCOPED_TRACE(more);
    expect_as_planned(launch_fsdp(2, train(more), {"FSDP_HOST_WEIGHTS=per_rank"}));
  }
}

TEST_F(PlannedRun, ADryRunPrintsAndWritesNothing) {
  const CommandResult result = launch_fsdp(2, train("--dry-run"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("1 x 2 ranks, optim_grads_params, fp32"));
  EXPECT_THAT(result.out, HasSubstr("memory of a rank"));
  EXPECT_FALSE(fs::exists(path("out")));
  const CommandResult planned = run_fsdp("plan " + path("run.toml") + " --world 2");
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("1 x 2 ranks, optim_grads_params, fp32, adamw; 1 x 4 sequences of 32 tokens"));
  EXPECT_EQ(run_fsdp(train("--dry-run --train.batch_sequences=0")).exit_code, 2);
}

TEST_F(PlannedRun, APictureIsWritten) {
  const CommandResult result = run_fsdp("plan " + path("run.toml") + " --svg " + path("memory.svg"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::ifstream file(path("memory.svg"));
  std::string first;
  std::getline(file, first);
  EXPECT_THAT(first, HasSubstr("<svg xmlns"));
}

}  // namespace
}  // namespace fsdp::app::plan_test
