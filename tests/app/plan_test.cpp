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
  expect_refusal(model + "--sparkling 8", "unknown option '--sparkling'. `fsdp plan --help` lists all.");
  expect_refusal(model + "--world 8 --strategy hybrid", "it needs an axis 'replicate'");
  expect_refusal(model + "--world 8 --strategy zero4", "Did you mean 'zero0'?");
  expect_refusal(model + "--precision fp8", "expected one of fp32, bf16, bf16_reduce");
  expect_refusal(model + "--memory much", "such as 80GiB");
  expect_refusal(model + "--fit", "expected --memory");
  expect_refusal(model + "--world 20000", "expected at most 16384");
  expect_refusal(model + "--model x", "got several models");
  expect_refusal("--preset llama-3.1-405b --world 8 --memory 80GiB --fit", "nothing fits into 80.00 GiB");
  expect_refusal("--model.preset=llama-3.1-8b --train.batch_sequences=10 --world 8", "Set it to 16.");
  expect_refusal(model + "--recompute most", "expected one of: none, elementwise, gate_up, block, offload.");
}

// Weights of o3 are of 16 bits, and so is what was planned of them.
TEST(PlanVerb, PrecisionAndWeightsGoTogether) {
  const std::string model = "--preset smollm2-135m --world 8 --optimizer adamw_compensated";
  expect_refusal(model, "optimizer: got adamw_compensated with precision bf16, expected o3");
  expect_refusal(model, "Pass --precision o3.");
  EXPECT_EQ(plan_json(model + " --precision o3")["memory"]["parts"],
            plan_json("--preset smollm2-135m --world 8 --precision o3")["memory"]["parts"]);
  for (const std::string optimizer : {"adamw", "adamw_8bit"}) {
    const std::string config =
        "--model.preset=smollm2-135m --train.batch_sequences=8 --world 8 --optimizer.name=" + optimizer;
    expect_refusal(config + " --shard.precision=o3 --precision bf16",
                   "precision: got bf16 with weights of o3, expected o3");
    const auto weight = [&](const std::string& more) {
      return plan_json(config + more)["memory"]["parts"]["main_weight"].get<double>();
    };
    EXPECT_LT(weight(" --shard.precision=o3"), 0.6 * weight(" --shard.precision=bf16"));
    EXPECT_EQ(weight(" --shard.precision=o3 --shard.precision=bf16"), weight(" --shard.precision=bf16"));
  }
}

TEST(PlanVerb, SearchesAndExplains) {
  const nlohmann::json fit = plan_json("--preset smollm3-3b --world 8 --memory 80GiB --fit");
  ASSERT_FALSE(fit["best"].empty());
  for (const auto& best : fit["best"]) EXPECT_LE(best["memory"].get<int64_t>(), int64_t{80} << 30);
  const nlohmann::json why = plan_json("--preset llama-3.1-70b --world 64 --memory 80GiB --why");
  EXPECT_FALSE(why["fits"].get<bool>());
  EXPECT_EQ(why["why"]["knobs"].size(), 3U);
  const nlohmann::json slow = plan_json("--preset llama-3.1-70b --world 128 --recompute block --why")["why"];
  EXPECT_THAT(slow["limiting"].get<std::string>(), testing::StartsWith("compute ("));
  for (const auto& knob : slow["knobs"]) {
    EXPECT_GT(knob["gain_percent"], 0) << knob;
    EXPECT_LT(knob["step_ms"], slow["step_ms"]) << knob;
  }
}

TEST(PlanVerb, FitRanksByPredictedTime) {
  const nlohmann::json fit = plan_json(
      "--preset llama-3.1-70b --world 1280 --sequence 8192 --microbatches 4 --memory 80GiB --fit --hardware h200");
  ASSERT_GT(fit["best"].size(), 1U);
  for (size_t i = 1; i < fit["best"].size(); ++i) {
    EXPECT_GT(fit["best"][i]["step_ms"], fit["best"][i - 1]["step_ms"]);
    EXPECT_LT(fit["best"][i]["memory"], fit["best"][i - 1]["memory"]);
  }
  for (const auto& loser : fit["losers"]) EXPECT_FALSE(loser["reason"].get<std::string>().empty());
}

class PlannedTime : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }

  // Products take their operations over 10^6 a second, everything else nothing.
  std::string made_up_hardware() const {
    std::ofstream(path("made_up.json"))
        << R"({"name": "made up", "peak_flops": {"fp32": 1e6}, "memory_bytes_per_second": 1e30,)"
        << R"( "node": {"bytes_per_second": 1e30}, "network": {"bytes_per_second": 1e30}})";
    return path("made_up.json");
  }

  io::TemporaryFolder folder_;
};

constexpr const char* kTiny =
    "--model.family=llama --model.vocab_size=32 --model.hidden_size=8 --model.layers=2 --model.heads=2 "
    "--model.kv_heads=2 --model.head_dim=4 --model.ffn_size=16 --data.sequence_length=16 --train.batch_sequences=1 ";

// 6 operations for each of the parameters that a token is multiplied with, 14 for each feature and token that attention
// sees, of which MFU counts 12.
TEST_F(PlannedTime, OfATinyModelByHand) {
  const nlohmann::json time = plan_json(kTiny + ("--world 1 --tokens 1M --hardware " + made_up_hardware()))["time"];
  const double matrices = 2 * (4 * 8 * 8 + 3 * 8 * 16) + 32 * 8, seen = 2 * 8 * 8.5;
  const double seconds = 16 * (6 * matrices + 14 * seen) / 1e6;
  EXPECT_EQ(time["hardware"], "made up");
  EXPECT_FALSE(time["hardware_is_assumed"].get<bool>());
  EXPECT_NEAR(time["step_ms"], 1e3 * seconds, 1e-6);
  EXPECT_NEAR(time["mfu"], (6 * matrices + 12 * seen) / (6 * matrices + 14 * seen), 1e-9);
  EXPECT_NEAR(time["tokens_per_second"], 16 / seconds, 1e-6);
  EXPECT_EQ(time["run"]["steps"], 62500);
  EXPECT_NEAR(time["run"]["hours"], 62500 * seconds / 3600, 1e-6);
  EXPECT_GT(time["run"]["hours_with_failures"], time["run"]["hours"]);
  EXPECT_EQ(time["critical_path"]["limiting"], "compute");
  EXPECT_EQ(time["units"].size(), 3U);
}

TEST_F(PlannedTime, SaysWhatItAssumes) {
  const CommandResult text = run_fsdp("plan --preset llama-3.1-8b --world 16");
  EXPECT_THAT(text.out, HasSubstr("time of a step on h100-sxm (assumed: --hardware says what it is)"));
  EXPECT_THAT(text.out, HasSubstr("limited by compute: the critical path is compute "));
  EXPECT_THAT(run_fsdp("plan --preset llama-3.1-8b --world 16 --transport two_level").out,
              HasSubstr("time of a step on cpu-core (assumed"));
  EXPECT_THAT(run_fsdp("plan --preset llama-3.1-8b --world 12").out,
              HasSubstr("time of a step: not predicted. ranks: got 12 on nodes of 8, expected a multiple of it"));
  EXPECT_TRUE(plan_json("--preset llama-3.1-8b --world 12")["time"].contains("not_predicted"));
}

TEST_F(PlannedTime, TimelinesAreWritten) {
  const std::string setup = "plan --preset smollm2-135m --world 8 --timeline ";
  ASSERT_EQ(run_fsdp(setup + path("step.json")).exit_code, 0);
  ASSERT_EQ(run_fsdp(setup + path("step.svg")).exit_code, 0);
  std::ifstream trace(path("step.json")), picture(path("step.svg"));
  EXPECT_GT(nlohmann::json::parse(trace)["traceEvents"].size(), 100U);
  std::string first;
  std::getline(picture, first);
  EXPECT_THAT(first, HasSubstr("<svg xmlns"));
}

// By name, and before anything is written.
TEST_F(PlannedTime, WhatIsUnknownIsRefused) {
  const std::string setup = "--preset llama-3.1-8b --world 16 --svg " + path("memory.svg") + " ";
  expect_refusal(setup + "--hardware h300", "expected one of a100-80gb, h100-sxm, h200, b200, cpu-core, or the path");
  expect_refusal(setup + "--hardware " + made_up_hardware(), "got dtype bf16, expected one of fp32");
  expect_refusal(setup + "--timeline " + path("step.png"), "expected a name that ends in .json");
  expect_refusal(setup + "--tokens plenty", "such as 15T or 300B");
  expect_refusal("--preset llama-3.1-8b --world 12 --tokens 1T", "no time of a step: ranks: got 12 on nodes of 8");
  expect_refusal(setup + "--fit --memory 80GiB --tokens 1T", "--tokens excludes --fit");
  expect_refusal("calibrate --precision fp8", "got 'fp8', expected fp32 or bf16");
  expect_refusal("calibrate --ranks 0", "expected at least 1");
  EXPECT_FALSE(fs::exists(path("memory.svg")));
}

TEST_F(PlannedTime, ThisMachineIsCalibrated) {
  for (const char* ranks : {"1", "2"}) {
    const std::string file = path(std::string("ranks") + ranks + ".json");
    const CommandResult result =
        run_fsdp(std::string("plan calibrate --seconds 0.5 --ranks ") + ranks + " --out " + file);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(std::string(ranks) + " rank(s), each while all of them compute:"));
    EXPECT_THAT(result.out, HasSubstr("wrote " + file));
    const nlohmann::json time = plan_json(kTiny + ("--world 1 --hardware " + file))["time"];
    EXPECT_EQ(time["hardware"], "this machine");
    EXPECT_GT(time["step_ms"], 0);
  }
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
  for (const char* more :
       {"--shard.precision=bf16", "--shard.precision=fp16", "--shard.strategy=optim --train.microbatch_sequences=1",
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

// The vocabulary of a model made here is that of the data sets of a mixture.
TEST_F(PlannedRun, OfAMixture) {
  fs::copy(path("data"), path("more"), fs::copy_options::recursive);
  const auto parts = [&](const std::string& data) {
    return plan_json(path("run.toml") + " --world 2 --data.path=" + data)["memory"]["parts"];
  };
  EXPECT_EQ(parts(path("data") + ":0.7," + path("more") + ":0.3"), parts(path("data")));
  expect_refusal(path("run.toml") + " --world 2 --data.path=" + path("none") + ":0.7," + path("nor") + ":0.3",
                 "no data set at data.path");
  const CommandResult check =
      run_fsdp("config check " + path("run.toml") + " --data.path=" + path("data") + ":1," + path("none") + ":1");
  EXPECT_THAT(check.out, HasSubstr("note: data.path: " + path("none") + " is not there from here"));
  EXPECT_EQ(check.out.find(path("data") + " is not there"), std::string::npos) << check.out;
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

// Beforehand, and at the end beside what it took; a name that nobody knows ends the run before it writes.
TEST_F(PlannedRun, SaysHowLongAStepTakes) {
  const CommandResult dry = run_fsdp(train("--dry-run --output.hardware=cpu-core"));
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_THAT(dry.out, HasSubstr("time of a step on cpu-core\n"));
  const CommandResult unknown = launch_fsdp(2, train("--output.hardware=pdp-11"));
  EXPECT_EQ(unknown.exit_code, 2) << unknown.out;
  EXPECT_THAT(unknown.err, HasSubstr("got 'pdp-11', expected one of a100-80gb"));
  EXPECT_FALSE(fs::exists(path("out")));
  const CommandResult result = launch_fsdp(2, train("--output.hardware=cpu-core"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::ContainsRegex("plan: a step takes [0-9.]+ ms on cpu-core: "));
  EXPECT_THAT(result.out,
              testing::ContainsRegex("plan: a step took [0-9.]+ ms .[+-][0-9.]+ % of the [0-9.]+ planned on cpu-core"));
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
