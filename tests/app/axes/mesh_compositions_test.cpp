// Axes together with each other and with what trains: the run of one rank, or of one that is plainer, whatever the
// mesh, and what its plan says of memory.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/app/axes/mesh_fixture.h"

namespace fsdp::app {
namespace {

class MeshCompositions : public MeshRuns {
 protected:
  static constexpr const char* kShort = "--train.steps=5 ";
  using Meshes = std::vector<std::pair<int, std::string>>;
  // `command` of a folder and a mesh.
  using Command = std::function<std::string(const std::string& folder, const std::string& mesh)>;
  void expect_same_runs(int ranks, const Meshes& meshes, const Command& command, double bound = 1e-5) const {
    std::filesystem::remove_all(path("one"));
    const CommandResult one = launch_fsdp(ranks, command("one", ""));
    ASSERT_EQ(one.exit_code, 0) << one.err;
    for (const auto& [count, mesh] : meshes) {
      SCOPED_TRACE(std::to_string(count) + " ranks, " + command("", mesh));
      std::filesystem::remove_all(path("cut"));
      const CommandResult result = launch_fsdp(count, command("cut", mesh));
      ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
      expect_same_run("cut", "one", bound);
      expect_parts_as_planned(result.out);
    }
  }
  double fullest_expert(const std::string& folder) const {
    return read_lines(path(folder) + "/metrics.jsonl")[0]["fullest_expert"];
  }
};

// The loss that balances experts is one of all layers and of all ranks that have tokens.
TEST_F(MeshCompositions, ExpertsInStagesAndBesideCutLayers) {
  const auto in_microbatches = [&](int64_t sequences) {
    return [this, sequences](const std::string& folder, const std::string& mesh) {
      return run_experts(folder, kShort + ("--train.microbatch_sequences=" + std::to_string(sequences)) + " " + mesh);
    };
  };
  expect_same_runs(1,
                   {{2, "--mesh.pp=2 --check.compute_twice_every=4"},
                    {2, "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2"},
                    {4, "--mesh.pp=4 --mesh.schedule=gpipe --train.recompute=block"},
                    {4, "--mesh.pp=4 --mesh.schedule=zero_bubble"}},
                   in_microbatches(3));
  EXPECT_DOUBLE_EQ(fullest_expert("cut"), fullest_expert("one"));
  // Of which microbatches a batch is depends on the ranks that have sequences of their own.
  expect_same_runs(2,
                   {{4, "--mesh.pp=2 --mesh.ep=2"},
                    {4, "--mesh.tp=2 --mesh.ep=2 --train.recompute=block"},
                    {8, "--mesh.pp=2 --mesh.tp=2 --mesh.ep=2"}},
                   in_microbatches(2));
  EXPECT_DOUBLE_EQ(fullest_expert("cut"), fullest_expert("one"));
  // In blocks of one stage each, and frozen.
  expect_same_runs(
      1, {{2, "--mesh.tp=2"}, {4, "--mesh.pp=4 --shard.strategy=optim_grads"}},
      [&](const std::string& folder, const std::string& mesh) {
        return run_experts(
            folder,
            "--train.steps=5 --model.expert_ffn_size=24 --train.z_loss=1e-3 --tune.frozen=*layers.0*,*embed* "
            "--model.tie_embeddings=false --train.microbatch_sequences=3 " +
                mesh,
            "qwen3_moe");
      });
}

// A first layer without experts, groups of them, shared ones, and latent attention with queries of both kinds.
TEST_F(MeshCompositions, DeepSeekOnEveryAxis) {
  const std::string sizes = " --model.hidden_size=20 --model.layers=3 --model.ffn_size=26";  // not those of run.toml
  for (const char* query_rank : {"null", "12"}) {
    std::ifstream golden(std::string(FSDP_TEST_DATA_DIR) + "/models/deepseek2-mini/config.json");
    nlohmann::json config = nlohmann::json::parse(golden);
    config["q_lora_rank"] = nlohmann::json::parse(query_rank);
    config["initializer_range"] = 0.1;
    config["vocab_size"] = 264;
    config["router_aux_loss_coef"] = 0.05;
    std::filesystem::create_directories(path("deepseek"));
    std::ofstream(path("deepseek") + "/config.json") << config;
    const Meshes both = {{4, "--mesh.pp=2 --mesh.tp=2 --mesh.schedule=zero_bubble"}};
    expect_same_runs(1, std::string(query_rank) == "null" ? Meshes{{3, "--mesh.pp=3"}, {2, "--mesh.tp=2"}} : both,
                     [&](const std::string& folder, const std::string& mesh) {
                       return run(folder, kShort + ("--model.path=" + path("deepseek")) + sizes +
                                              " --model.weights=random --train.microbatch_sequences=3 " + mesh);
                     });
  }
}

TEST_F(MeshCompositions, ARunOfExpertsGoesOnOnAnotherMesh) {
  const std::string longer = "--train.steps=18 --checkpoint.every_steps=1 ";
  ASSERT_EQ(launch_fsdp(1, run_experts("one", longer)).exit_code, 0);
  const Legs legs = {{8, "--mesh.pp=2 --mesh.tp=2 --mesh.ep=2"},
                     {2, "--mesh.tp=2"},
                     {4, "--mesh.pp=4"},
                     {4, "--mesh.tp=2 --mesh.ep=2"},
                     {1, ""}};
  expect_run_over(legs, [&](const std::string& mesh) { return run_experts("elastic", longer + mesh); });
}

TEST_F(MeshCompositions, StagesInEveryPrecision) {
  const std::string sizes = "--model.hidden_size=64 --model.ffn_size=128 --train.microbatch_sequences=3 ";
  for (const char* precision :
       {"fp16", "o1", "o3", "fp8 --shard.fp8_keep=first", "fp8 --shard.fp8_keep=first --shard.fp8_recipe=delayed"}) {
    expect_same_runs(
        1, {{2, "--mesh.pp=2"}},
        [&](const std::string& folder, const std::string& mesh) {
          return run(folder, kShort + sizes + "--shard.precision=" + precision + " " + mesh);
        },
        1e-3);
  }
}

// What overflows in one stage is skipped in all.
TEST_F(MeshCompositions, OneLossScaleForAllStages) {
  const std::string options =
      "--shard.precision=fp16 --model.tie_embeddings=false --train.steps=6 --train.microbatch_sequences=3 ";
  const std::string fault = "FSDP_FAULT=inject@value.grad:hit=4";
  ASSERT_EQ(launch_fsdp(1, run("one", options), {fault}).exit_code, 0);
  for (const char* rank : {"0", "1"}) {
    std::filesystem::remove_all(path("cut"));
    const CommandResult result =
        launch_fsdp(2, run("cut", options + "--mesh.pp=2"), {fault + std::string(":rank=") + rank});
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_TRUE(contains(result.out, "step 4 skipped: gradients overflowed at loss scale 65536, which is 32768 now"))
        << result.out;
    for (size_t step = 0; step < 6; ++step) {
      const double was = number(ledger("one")[step]["loss"]);
      EXPECT_NEAR(number(ledger("cut")[step]["loss"]), was, 1e-3 * was) << step;
    }
  }
}

// Delayed scales of all stages are in a checkpoint.
TEST_F(MeshCompositions, DelayedScalesAreThoseOfAllStages) {
  const std::string options =
      "--model.hidden_size=64 --model.ffn_size=128 --shard.precision=fp8 --shard.fp8_recipe=delayed --train.steps=9 "
      "--checkpoint.every_steps=1 ";
  ASSERT_EQ(launch_fsdp(1, run("one", options)).exit_code, 0);
  const Legs legs = {{2, "--mesh.pp=2"},
                     {2,
                      "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2 "
                      "--train.microbatch_sequences=6"},
                     {1, ""}};
  expect_run_over(
      legs, [&](const std::string& mesh) { return run("elastic", options + mesh); }, 1e-3);
}

// Adapters are whole in folders and checkpoints, whatever cuts them.
TEST_F(MeshCompositions, AdaptersTrainAsOnOneRank) {
  ASSERT_EQ(launch_fsdp(1, run("base")).exit_code, 0);
  const std::string adapters = "--model.path=" + path("base") +
                               "/model --tune.method=lora --tune.lora_rank=4 --train.lr=1e-2 "
                               "--train.microbatch_sequences=3 ";
  const auto lora = [&](const std::string& folder, const std::string& more) {
    return run(folder, kShort + adapters + more);
  };
  expect_same_runs(1, {{2, "--mesh.pp=2"}, {2, "--mesh.tp=2"}, {4, "--mesh.pp=2 --mesh.tp=2"}, {4, "--mesh.pp=4"}},
                   lora);
  // That of four stages, on.
  std::filesystem::rename(path("cut") + "/model", path("adapter"));
  const std::string further = "--tune.lora_from=" + path("adapter") + " ";
  expect_same_runs(1, {{2, "--mesh.pp=2"}, {4, "--mesh.tp=4"}},
                   [&](const std::string& folder, const std::string& mesh) { return lora(folder, further + mesh); });
}

// Fewer heads of keys and values than ranks: each is on several.
TEST_F(MeshCompositions, HeadsOfKeysAndValuesOnSeveralRanks) {
  for (const std::string heads : {"2 --model.family=qwen2", "1 --model.family=qwen3"}) {
    expect_same_runs(1, {{4, "--mesh.tp=4"}, {4, "--mesh.pp=2 --mesh.tp=2"}, {8, "--mesh.tp=4 --mesh.cp=2"}},
                     [&](const std::string& folder, const std::string& mesh) {
                       return run(folder, kShort + ("--model.kv_heads=" + heads) + " " + mesh);
                     });
  }
  const std::string longer = "--train.steps=14 --checkpoint.every_steps=1 --model.kv_heads=2 ";
  std::filesystem::remove_all(path("one"));
  ASSERT_EQ(launch_fsdp(1, run("one", longer)).exit_code, 0);
  const Legs legs = {
      {4, "--mesh.tp=4"}, {2, "--mesh.tp=2"}, {8, "--mesh.tp=4 --check.compare_replicas_every=1"}, {3, ""}};
  expect_run_over(legs, [&](const std::string& mesh) { return run("elastic", longer + mesh); });
}

}  // namespace
}  // namespace fsdp::app
