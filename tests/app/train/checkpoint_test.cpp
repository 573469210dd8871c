// Runs that are interrupted and go on, held against runs that never stopped: the ledger tells what every step read and
// computed, bit by bit.
#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/app/training_fixture.h"

namespace fsdp::app {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class Checkpoint : public TrainingFixture {
 protected:
  std::string run(const std::string& folder, const std::string& more = "") const {
    return train(
        "--train.steps=14 --train.batch_sequences=12 --checkpoint.every_steps=5 --resume=auto --output.folder=" +
        path(folder) + " " + more);
  }
  std::string ledger(const std::string& folder) const { return read_file(path(folder) + "/ledger.jsonl"); }
  std::string weights(const std::string& folder) const { return read_file(path(folder) + "/model/model.safetensors"); }

  // The run of `folder`, never stopped.
  void make_reference(int ranks, const std::string& more) {
    const CommandResult result = launch_fsdp(ranks, run("reference", more));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    ASSERT_EQ(read_lines(path("reference") + "/ledger.jsonl").size(), 14u);
  }
  void expect_reference(const std::string& folder) {
    EXPECT_EQ(ledger(folder), ledger("reference")) << folder;
    EXPECT_TRUE(weights(folder) == weights("reference")) << folder << ": other weights";
  }
};

TEST_F(Checkpoint, StoppedRunGoesOnBitForBit) {
  struct Kind {
    const char* name;
    int ranks;
    const char* options;
  };
  for (const Kind& kind :
       {Kind{"ZeRO-3", 2, ""}, Kind{"ZeRO-3 in bf16", 2, "--shard.precision=bf16"},
        Kind{"ZeRO-2", 2, "--shard.strategy=optim_grads"}, Kind{"ZeRO-1", 2, "--shard.strategy=optim"},
        Kind{"HSDP", 4, "--shard.strategy=hybrid --shard.replicas=2"},
        Kind{"8-bit moments", 2, "--optimizer.name=adamw_8bit"},
        Kind{"7 bytes a parameter", 2, "--optimizer.name=adamw_8bit --shard.precision=o3"},
        Kind{"8-bit moments on a disk", 3, "--optimizer.name=adamw_8bit --shard.offload=disk"},
        Kind{"Lion", 2, "--optimizer.name=lion --train.lr=1e-4"}, Kind{"Muon", 3, "--optimizer.name=muon"},
        Kind{"Adafactor", 3, "--optimizer.name=adafactor"},
        Kind{"schedule-free", 2, "--optimizer.name=schedule_free --train.schedule=constant"},
        Kind{"Muon in bf16", 2, "--optimizer.name=muon --optimizer.muon_by=polar_express --shard.precision=bf16"},
        Kind{"HSDP in bf16", 4, "--shard.strategy=hybrid --shard.replicas=2 --shard.precision=bf16"}}) {
    std::filesystem::remove_all(path("reference"));
    std::filesystem::remove_all(path("stopped"));
    make_reference(kind.ranks, kind.options);
    const CommandResult stopped =
        launch_fsdp(kind.ranks, run("stopped", kind.options), {"FSDP_FAULT=term@step.end:rank=1:hit=7"});
    EXPECT_EQ(stopped.exit_code, 75) << kind.name << stopped.out << stopped.err;
    EXPECT_TRUE(contains(stopped.out, "asked to stop by SIGTERM; saved step 8; start again with --resume=auto"))
        << kind.name << stopped.out;
    const CommandResult resumed = launch_fsdp(kind.ranks, run("stopped", kind.options));
    EXPECT_EQ(resumed.exit_code, 0) << kind.name << resumed.err;
    EXPECT_TRUE(contains(resumed.out, "at step 8 (written by ")) << kind.name << resumed.out;
    expect_reference("stopped");
    EXPECT_EQ(read_lines(path("stopped") + "/metrics.jsonl").size(), 15u) << kind.name;
    EXPECT_EQ(run_fsdp("verify " + path("stopped")).exit_code, 0) << kind.name;
  }
}

TEST_F(Checkpoint, KilledRunGoesOnBitForBit) {
  make_reference(2, "");
  for (const char* fault : {"kill@step.backward:hit=8", "kill@file.write:rank=1:hit=2", "kill@file.rename:hit=1",
                            "kill@save.committed", "throw@step.optimizer:rank=1:hit=12"}) {
    std::filesystem::remove_all(path("killed"));
    const CommandResult killed = launch_fsdp(2, run("killed"), {std::string("FSDP_FAULT=") + fault});
    EXPECT_NE(killed.exit_code, 0) << fault;
    EXPECT_EQ(launch_fsdp(2, run("killed")).exit_code, 0) << fault;
    expect_reference("killed");
  }
}

TEST_F(Checkpoint, AnyNumberOfRanksGoesOn) {
  const std::string longer = "--train.steps=24 ";
  ASSERT_EQ(launch_fsdp(1, run("reference", longer)).exit_code, 0);
  const auto expected = read_lines(path("reference") + "/ledger.jsonl");
  int stage = 0;
  for (const int ranks : {1, 2, 4, 3, 1}) {
    const std::string fault = ++stage < 5 ? "FSDP_FAULT=term@step.end:hit=3" : "FSDP_FAULT=";
    const std::string strategy = ranks == 4 ? "--shard.strategy=hybrid --shard.replicas=2" : "";
    const CommandResult result = launch_fsdp(ranks, run("elastic", longer + strategy), {fault});
    ASSERT_EQ(result.exit_code, stage < 5 ? 75 : 0) << ranks << " ranks: " << result.out << result.err;
  }
  const auto actual = read_lines(path("elastic") + "/ledger.jsonl");
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t step = 0; step < expected.size(); ++step) {
    for (const char* key : {"step", "position", "batch", "lr"})
      EXPECT_EQ(actual[step][key], expected[step][key]) << step;
    const auto loss = [](const nlohmann::json& line) {
      return std::bit_cast<double>(std::stoull(line["loss"].get<std::string>(), nullptr, 16));
    };
    EXPECT_NEAR(loss(actual[step]), loss(expected[step]), 1e-5 * loss(expected[step])) << step;
  }
}

TEST_F(Checkpoint, DamagedOnesArePassedOver) {
  make_reference(2, "");
  ASSERT_EQ(launch_fsdp(2, run("damaged", "--checkpoint.keep_last=0")).exit_code, 0);
  const std::string file = path("damaged") + "/checkpoints/step-14/rank-00001-of-00002.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] ^= 4;
  std::ofstream(file, std::ios::binary) << bytes;
  const CommandResult verified = run_fsdp("verify " + path("damaged"));
  EXPECT_EQ(verified.exit_code, 4);
  EXPECT_TRUE(contains(verified.out, "damaged  ") && contains(verified.out, "chunk 0")) << verified.out;
  const CommandResult resumed = launch_fsdp(2, run("damaged", "--checkpoint.keep_last=0"));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(contains(resumed.out, "passed over step-14: ")) << resumed.out;
  EXPECT_TRUE(contains(resumed.out, "at step 10 (written by 2 rank(s))")) << resumed.out;
  EXPECT_TRUE(contains(resumed.out, "set aside what was saved later: step-14.aside")) << resumed.out;
  expect_reference("damaged");
  // It is this run's all the same, and goes with it.
  const CommandResult anew =
      launch_fsdp(2, run("damaged", "--resume=never --output.overwrite=replace --checkpoint.keep_last=0"));
  EXPECT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_FALSE(std::filesystem::exists(path("damaged") + "/checkpoints/step-14.aside"));
  expect_reference("damaged");
}

TEST_F(Checkpoint, NothingWholeIsAnErrorAndNoNewStart) {
  ASSERT_EQ(launch_fsdp(2, run("torn")).exit_code, 0);
  for (const auto& place : std::filesystem::directory_iterator(path("torn") + "/checkpoints")) {
    if (place.is_directory()) std::filesystem::resize_file(place.path() / "manifest.json", 100);
  }
  const std::string before = ledger("torn");
  const CommandResult result = launch_fsdp(2, run("torn"));
  EXPECT_EQ(result.exit_code, 4) << result.out;
  EXPECT_TRUE(contains(result.err, "got no checkpoint that is whole")) << result.err;
  EXPECT_EQ(ledger("torn"), before);
}

TEST_F(Checkpoint, TokensAreNotCountedByTwoBatches) {
  ASSERT_EQ(run_fsdp(run("counted")).exit_code, 0);
  const std::string by_tokens = "--train.steps=0 --train.max_tokens=1000000 ";
  const CommandResult other = run_fsdp(run("counted", by_tokens + "--train.batch_sequences=6"));
  EXPECT_NE(other.exit_code, 0);
  EXPECT_TRUE(contains(other.err, "train.batch_sequences: got 6, expected 12 as in the checkpoint")) << other.err;
}

TEST_F(Checkpoint, TokensAreThoseThatWereRead) {
  ASSERT_EQ(run_fsdp(run("halved")).exit_code, 0);
  const CommandResult resumed = run_fsdp(run("halved", "--train.steps=16 --train.batch_sequences=6"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  const auto lines = read_lines(path("halved") + "/metrics.jsonl");
  const auto tokens_at = [&](int step) {
    for (const auto& line : lines) {
      if (line.at("step") == step && line.contains("tokens")) return line["tokens"].get<int64_t>();
    }
    return int64_t{-1};
  };
  EXPECT_EQ(tokens_at(14), 14 * 12 * 32);
  EXPECT_EQ(tokens_at(15), (14 * 12 + 6) * 32);
  EXPECT_EQ(tokens_at(16), (14 * 12 + 2 * 6) * 32);
}

TEST_F(Checkpoint, FullDiskDoesNotEndTheRun) {
  make_reference(2, "");
  const CommandResult result = launch_fsdp(2, run("full"), {"FSDP_FAULT=error=ENOSPC@file.write:rank=1:hit=1"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_TRUE(contains(result.out, "save failed: ") && contains(result.out, "No space left on device")) << result.out;
  expect_reference("full");
  EXPECT_EQ(run_fsdp("verify " + path("full")).exit_code, 0);
}

TEST_F(Checkpoint, NumbersThatAreNotFinite) {
  make_reference(2, "");
  const CommandResult once = launch_fsdp(2, run("once"), {"FSDP_FAULT=inject@value.loss:rank=1:hit=7"});
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_TRUE(contains(once.out, "step 7 was computed wrongly once and then rightly")) << once.out;
  expect_reference("once");
  const std::vector<std::string> twice = {"FSDP_FAULT=inject@value.grad:hit=7;inject@value.grad:hit=8"};
  const CommandResult stopped = launch_fsdp(2, run("stop"), twice);
  EXPECT_EQ(stopped.exit_code, 6) << stopped.out;
  EXPECT_TRUE(contains(stopped.err, "step 7: ") && contains(stopped.err, "not finite, computed twice")) << stopped.err;
  const CommandResult skipped = launch_fsdp(2, run("skip", "--train.on_nonfinite=skip"), twice);
  EXPECT_EQ(skipped.exit_code, 0) << skipped.err;
  EXPECT_TRUE(read_lines(path("skip") + "/ledger.jsonl").at(6).value("skipped", false));
  const CommandResult back = launch_fsdp(2, run("back", "--train.on_nonfinite=rollback"), twice);
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_TRUE(contains(back.out, "back to step 5, without the data in between")) << back.out;
  const auto lines = read_lines(path("back") + "/ledger.jsonl");
  ASSERT_EQ(lines.size(), 14u);
  EXPECT_EQ(lines[4]["position"], 4 * 12);
  EXPECT_EQ(lines[5]["position"], 7 * 12) << "goes on after the data of step 7";
}

TEST_F(Checkpoint, WrongComputationsAreFound) {
  const CommandResult drifted =
      launch_fsdp(2, run("drift", "--shard.strategy=no_shard --check.compare_replicas_every=2"),
                  {"FSDP_FAULT=inject@value.bitflip_weight:rank=1:hit=3"});
  EXPECT_EQ(drifted.exit_code, 1) << drifted.out;
  EXPECT_TRUE(contains(drifted.err, "got other bits on rank 1 than on rank 0")) << drifted.err;
  make_reference(2, "");
  const CommandResult twice = launch_fsdp(2, run("twice", "--check.compute_twice_every=2"));
  EXPECT_EQ(twice.exit_code, 0) << twice.err;
  expect_reference("twice");
}

TEST_F(Checkpoint, OneTrainerForOneFolder) {
  const CommandResult slow = launch_fsdp(1, run("busy", "--train.steps=3"), {"FSDP_FAULT=kill@step.end:hit=2"});
  EXPECT_EQ(slow.exit_code, 137);
  EXPECT_EQ(launch_fsdp(1, run("busy")).exit_code, 0) << "the lock outlived its holder";
}

}  // namespace
}  // namespace fsdp::app
