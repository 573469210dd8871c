// tune.loss = "dpo" as a user runs it: pairs, what the starting model says of them, and training.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/app/train/loop_fixture.h"

namespace fsdp::app {
namespace {

class PreferenceRuns : public Loop {
 protected:
  static void SetUpTestSuite() {
    Loop::SetUpTestSuite();
    std::ofstream pairs(suite_path("pairs.jsonl"));
    for (int i = 0; i < 60; ++i) {
      const std::string letter(static_cast<size_t>(2 + i % 4), static_cast<char>('a' + i % 20));
      pairs << nlohmann::json{{"prompt", letter}, {"chosen", letter + "!"}, {"rejected", "no"}}.dump() << "\n";
    }
    pairs.close();
    run_for_all("prepare " + suite_path("pairs.jsonl") + " --chat plain --pairs --holdout 12 -o " +
                suite_path("pairs"));
  }
  std::string dpo(const std::string& folder, const std::string& more = "") const {
    return run(folder, "--data.path=" + path("pairs") + " --tune.loss=dpo --train.steps=12 --train.lr=1e-3 " +
                           "--checkpoint.every_steps=6 " + more);
  }
  Lines steps(const std::string& folder) const {
    Lines found;
    for (const auto& line : read_lines(path(folder) + "/metrics.jsonl"))
      if (line.contains("loss")) found.push_back(line);
    return found;
  }
};

TEST_F(PreferenceRuns, LearnTheSameOnAnyNumberOfRanks) {
  const CommandResult whole = launch_fsdp(2, dpo("whole"));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_TRUE(contains(whole.out, "preference: computed references of 48 pairs and wrote ")) << whole.out;
  const Lines lines = steps("whole");
  ASSERT_EQ(lines.size(), 12u);
  // At the start both models are one.
  EXPECT_NEAR(lines[0]["loss"].get<double>(), std::log(2.0), 1e-6);
  EXPECT_NEAR(lines[0]["preference"]["reward_margin"].get<double>(), 0, 1e-5);
  EXPECT_LT(lines[11]["loss"].get<double>(), 0.65);
  EXPECT_GT(lines[11]["preference"]["reward_margin"].get<double>(), 0.1);
  EXPECT_GE(lines[11]["preference"]["reward_accuracy"].get<double>(), 0.7);
  const auto heldout = read_lines(path("whole") + "/metrics.jsonl").back().at("heldout");
  EXPECT_EQ(heldout.at("pairs"), 12);
  EXPECT_LT(heldout.at("loss").get<double>(), std::log(2.0));
  EXPECT_GT(heldout.at("reward_accuracy").get<double>(), 0.7);
  // The references that are there serve other runs, which go on where they stopped.
  ASSERT_EQ(launch_fsdp(2, dpo("parts"), {"FSDP_FAULT=kill@step.begin:hit=9"}).exit_code, 137);
  const CommandResult resumed = launch_fsdp(2, dpo("parts"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(contains(resumed.out, "preference: references of 48 pairs are those of ")) << resumed.out;
  expect_same("parts", "whole");
  for (const char* options : {"--train.microbatch_sequences=2", "--train.batch_sequences=8"}) {
    for (const auto& file : std::filesystem::directory_iterator(path("pairs")))
      if (file.path().extension() == ".bin" && contains(file.path().filename(), "references"))
        std::filesystem::remove(file.path());
    std::filesystem::remove_all(path("other"));
    const CommandResult other = launch_fsdp(1, dpo("other", options));
    ASSERT_EQ(other.exit_code, 0) << other.err;
    const Lines theirs = steps("other");
    for (size_t step = 0; step < lines.size(); ++step) {
      EXPECT_NEAR(theirs[step]["loss"].get<double>(), lines[step]["loss"].get<double>(), 2e-5) << step;
      EXPECT_NEAR(theirs[step]["preference"]["reward_margin"].get<double>(),
                  lines[step]["preference"]["reward_margin"].get<double>(), 1e-4);
    }
  }
}

TEST_F(PreferenceRuns, AdaptersStartFromTheirBase) {
  ASSERT_EQ(run_fsdp(run("base", "--train.steps=2")).exit_code, 0);
  const CommandResult result =
      launch_fsdp(2, dpo("lora", "--tune.method=lora --tune.lora_rank=4 --train.lr=1e-2 --model.path=" + path("base") +
                                     "/model --checkpoint.content=adapter"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Lines lines = steps("lora");
  EXPECT_NEAR(lines[0]["loss"].get<double>(), std::log(2.0), 1e-6);
  EXPECT_LT(lines[11]["loss"].get<double>(), lines[0]["loss"].get<double>());
}

TEST_F(PreferenceRuns, MisfitsAreRefused) {
  const auto expect_refusal = [](const CommandResult& result, const std::string& part) {
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_TRUE(contains(result.err, part)) << result.err;
  };
  expect_refusal(run_fsdp(dpo("x", "--tune.loss=sft")), "got sft with a data set of pairs");
  expect_refusal(run_fsdp(run("x", "--tune.loss=dpo")), "got dpo with a data set of single documents");
  expect_refusal(run_fsdp(dpo("x", "--train.z_loss=1e-4")), "got dpo with train.z_loss");
  expect_refusal(launch_fsdp(2, dpo("x", "--mesh.tp=2 --model.vocab_size=264")), "got dpo with mesh.tp > 1");
  expect_refusal(run_fsdp("prepare " + path("pairs.jsonl") + " --pairs -o " + path("y")), "--pairs: got it without");
  const CommandResult shorter = run_fsdp(dpo("x", "--data.sequence_length=8"));
  EXPECT_EQ(shorter.exit_code, 3);
  EXPECT_TRUE(contains(shorter.err, "pairs that are longer than data.sequence_length = 8")) << shorter.err;
}

}  // namespace
}  // namespace fsdp::app
