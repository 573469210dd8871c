// train.world_invariant: the ledger, which has the bits of every loss and norm, the weights and the held-out loss are
// those of one rank, whatever the number of ranks, the strategy and the transport, also where it changes on the way.
#include <gtest/gtest.h>

#include "tests/app/training_fixture.h"

namespace fsdp::app {
namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class WorldInvariance : public TrainingFixture {
 protected:
  std::string run(const std::string& folder, const std::string& more) const {
    return train(
        "--train.world_invariant=true --train.clip=0.5 --checkpoint.every_steps=2 --resume=auto --output.folder=" +
        path(folder) + " " + more);
  }
  void expect_run(const std::string& folder, int ranks, const std::string& more,
                  const std::vector<std::string>& environment = {}, int exit_code = 0) {
    const CommandResult result = launch_fsdp(ranks, run(folder, more), environment);
    ASSERT_EQ(result.exit_code, exit_code) << folder << ", " << ranks << " ranks: " << result.out << result.err;
  }
  nlohmann::json heldout(const std::string& folder) const {
    return read_lines(path(folder) + "/metrics.jsonl").back().at("heldout");
  }
  bool has_same_ledger(const std::string& folder) const {
    return bytes_of(path(folder) + "/ledger.jsonl") == bytes_of(path("alone") + "/ledger.jsonl");
  }
  void expect_as_alone(const std::string& folder) const {
    ASSERT_FALSE(bytes_of(path("alone") + "/ledger.jsonl").empty());
    EXPECT_TRUE(has_same_ledger(folder)) << folder << "\n"
                                         << bytes_of(path(folder) + "/ledger.jsonl") << "\n"
                                         << bytes_of(path("alone") + "/ledger.jsonl");
    EXPECT_TRUE(bytes_of(path(folder) + "/model/model.safetensors") ==
                bytes_of(path("alone") + "/model/model.safetensors"))
        << folder << ": other weights";
    EXPECT_EQ(heldout(folder), heldout("alone")) << folder;
  }
};

TEST_F(WorldInvariance, HoldsForAnyNumberOfRanksStrategyAndTransport) {
  const std::string gloo = "FSDP_TRANSPORT=gloo", shm = "FSDP_TRANSPORT=shm";
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const char* folder : {"alone", "two", "four", "eight", "hybrid"}) std::filesystem::remove_all(path(folder));
    const std::string same = "--shard.precision=" + precision + " ";
    ASSERT_NO_FATAL_FAILURE(expect_run("alone", 1, same));
    ASSERT_NO_FATAL_FAILURE(expect_run("two", 2, same + "--shard.strategy=optim_grads", {gloo}));
    ASSERT_NO_FATAL_FAILURE(expect_run("four", 4, same + "--shard.strategy=optim", {shm}));
    ASSERT_NO_FATAL_FAILURE(expect_run("eight", 8, same, {gloo}));
    ASSERT_NO_FATAL_FAILURE(expect_run("hybrid", 4, same + "--shard.strategy=hybrid_optim --shard.replicas=2", {shm}));
    for (const char* folder : {"two", "four", "eight", "hybrid"}) expect_as_alone(folder);
  }
}

TEST_F(WorldInvariance, HoldsForWhatElseIsTrained) {
  int number = 0;
  for (const std::string more :
       {"--shard.precision=fp16", "--shard.precision=fp8 --shard.fp8_keep= --shard.fp8_recipe=tensorwise",
        "--optimizer.name=muon --optimizer.muon_dtype=fp32", "--optimizer.name=adamw_8bit",
        "--optimizer.name=adafactor", "--optimizer.name=schedule_free --train.schedule=constant",
        "--train.microbatch_sequences=2 --train.recompute=block --train.projections=fused"}) {
    SCOPED_TRACE(more);
    std::filesystem::remove_all(path("alone"));
    ASSERT_NO_FATAL_FAILURE(expect_run("alone", 1, more));
    const std::string folder = "four" + std::to_string(++number);
    ASSERT_NO_FATAL_FAILURE(expect_run(folder, 4, more));
    expect_as_alone(folder);
  }
}

// Random numbers are told by the place in the data; the frozen base is bf16 and no part of the sums.
TEST_F(WorldInvariance, HoldsForAdaptersWithDropout) {
  ASSERT_NO_FATAL_FAILURE(expect_run("base", 1, ""));
  const std::string more =
      "--shard.precision=bf16 --tune.method=lora --tune.lora_dropout=0.1 --tune.lora_rank=4 "
      "--model.path=" +
      path("base") + "/model";
  ASSERT_NO_FATAL_FAILURE(expect_run("alone", 1, more));
  ASSERT_NO_FATAL_FAILURE(expect_run("four", 4, more));
  EXPECT_TRUE(has_same_ledger("four"));
  EXPECT_EQ(heldout("four"), heldout("alone"));
}

TEST_F(WorldInvariance, HoldsThroughAKillAndOtherNumbersOfRanks) {
  const std::string longer = "--train.steps=14 --shard.precision=bf16 ";
  ASSERT_NO_FATAL_FAILURE(expect_run("alone", 1, longer));
  const CommandResult killed = launch_fsdp(4, run("elastic", longer), {"FSDP_FAULT=kill@step.backward:rank=1:hit=9"});
  EXPECT_NE(killed.exit_code, 0) << killed.out;
  ASSERT_NO_FATAL_FAILURE(
      expect_run("elastic", 2, longer + "--shard.strategy=optim", {"FSDP_FAULT=term@step.end:rank=1:hit=3"}, 75));
  ASSERT_NO_FATAL_FAILURE(expect_run("elastic", 8, longer, {"FSDP_FAULT=term@step.end:hit=3"}, 75));
  ASSERT_NO_FATAL_FAILURE(expect_run("elastic", 1, longer));
  expect_as_alone("elastic");
}

// What the tests above would not see otherwise.
TEST_F(WorldInvariance, IsNotThereWithoutTheKey) {
  const std::string without = "--train.world_invariant=false --train.microbatch_sequences=1";
  ASSERT_NO_FATAL_FAILURE(expect_run("alone", 1, without));
  ASSERT_NO_FATAL_FAILURE(expect_run("four", 4, without));
  EXPECT_FALSE(has_same_ledger("four"));
}

TEST_F(WorldInvariance, RefusesWorldsOfOtherSums) {
  const auto refusal = [&](int ranks, const std::string& more) {
    const CommandResult result = launch_fsdp(ranks, run("refused", more));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  const std::string three = refusal(3, "--train.batch_sequences=12");
  EXPECT_TRUE(contains(three, "got 3 rank(s) for 12 microbatches of a step, expected 1, 2 or 4: with")) << three;
  const std::string two = refusal(2, "--train.batch_sequences=12 --shard.strategy=optim");
  EXPECT_TRUE(contains(two, "got 2 rank(s) for 12 microbatches of a step, expected 1: with")) << two;
}

}  // namespace
}  // namespace fsdp::app
