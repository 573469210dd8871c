// `fsdp train` with axes beside the data's: the run of one rank, whatever the mesh.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/app/axes/mesh_fixture.h"

namespace fsdp::app {
namespace {

class MeshAxes : public MeshRuns {
 protected:
  void expect_as_planned(const std::vector<std::pair<int, std::string>>& meshes) const {
    for (const auto& [ranks, mesh] : meshes) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + mesh);
      expect_as_planned(ranks, run("planned", mesh));
    }
  }
  // On four ranks, what the plan says.
  void expect_dry_run(const std::string& mesh, const std::vector<std::string>& texts) const {
    std::filesystem::remove_all(path("planned"));
    const CommandResult dry = launch_fsdp(4, run("planned", mesh + " --dry-run"));
    EXPECT_EQ(dry.exit_code, 0) << dry.err;
    for (const std::string& text : texts) EXPECT_TRUE(contains(dry.out, text)) << text << "\n" << dry.out;
  }
  // The command's weights, gradients, optimizer and buffers on this rank, and on those of other stages.
  void expect_as_planned(int ranks, const std::string& command) const {
    std::filesystem::remove_all(path("planned"));
    const CommandResult result = launch_fsdp(ranks, command);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(contains(result.out, "train: plan: beside what rests a rank holds")) << result.out;
    expect_parts_as_planned(result.out);
  }
};

TEST_F(MeshAxes, TrainAsOneRankDoes) {
  const std::pair<const char*, std::vector<std::pair<int, const char*>>> groups[] = {
      {"",
       {{2, "--mesh.tp=2"},
        {4, "--mesh.tp=2"},
        {4, "--mesh.tp=4"},
        {4, "--mesh.tp=2 --shard.strategy=hybrid --shard.replicas=2 --train.microbatch_sequences=3"},
        {4, "--mesh.tp=2 --shard.strategy=optim --train.recompute=block"},
        {2, "--mesh.tp=2 --check.compare_replicas_every=3 --check.compute_twice_every=4"}}},
      {"--model.tie_embeddings=false --train.z_loss=1e-3 --train.label_smoothing=0.1 --tune.frozen=*layers.0*",
       {{2, "--mesh.tp=2"}, {4, "--mesh.tp=2"}}}};
  for (const auto& [options, meshes] : groups) {
    std::filesystem::remove_all(path("one"));
    ASSERT_EQ(launch_fsdp(1, run("one", options)).exit_code, 0);
    for (const auto& [ranks, mesh] : meshes) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + mesh);
      std::filesystem::remove_all(path("cut"));
      const CommandResult result = launch_fsdp(ranks, run("cut", std::string(options) + " " + mesh));
      ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
      expect_same_run("cut", "one");
    }
  }
}

// Layers in stages, beside what cuts them.
TEST_F(MeshAxes, StagesTrainAsOneRankDoes) {
  const std::pair<const char*, std::vector<std::pair<int, const char*>>> groups[] = {
      {"",
       {{2, "--mesh.pp=2 --train.microbatch_sequences=3 --check.compute_twice_every=4"},
        {3, "--mesh.pp=3 --train.microbatch_sequences=2 --shard.strategy=no_shard"},
        {4, "--mesh.pp=4 --train.microbatch_sequences=1 --mesh.schedule=gpipe --train.recompute=block"},
        {4, "--mesh.pp=2 --train.microbatch_sequences=2 --shard.strategy=optim_grads --check.compare_replicas_every=3"},
        {4, "--mesh.pp=2 --train.microbatch_sequences=1 --shard.strategy=hybrid --shard.replicas=2"},
        {2, "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2 --train.microbatch_sequences=2"},
        {4,
         "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2 --train.microbatch_sequences=1 "
         "--shard.strategy=optim"},
        {4, "--mesh.pp=4 --mesh.schedule=zero_bubble --train.microbatch_sequences=2 --check.compute_twice_every=4"},
        {4, "--mesh.pp=2 --mesh.tp=2 --mesh.schedule=zero_bubble --train.microbatch_sequences=3"},
        {4, "--mesh.pp=2 --mesh.tp=2 --train.microbatch_sequences=3"},
        {4, "--mesh.pp=2 --mesh.cp=2 --mesh.cp_exchange=ring --train.microbatch_sequences=4"},
        {8, "--mesh.pp=2 --mesh.tp=2 --train.microbatch_sequences=2"}}},
      {"--model.tie_embeddings=false --train.z_loss=1e-3 --train.label_smoothing=0.1 --tune.frozen=*layers.0*",
       {{2, "--mesh.pp=2"}, {4, "--mesh.pp=2 --mesh.tp=2 --train.microbatch_sequences=3"}}},
      {"--optimizer.name=muon", {{4, "--mesh.pp=2 --train.microbatch_sequences=2"}}},
      {"--optimizer.name=adamw_8bit", {{4, "--mesh.pp=2 --train.microbatch_sequences=2"}}}};
  for (const auto& [options, meshes] : groups) {
    std::filesystem::remove_all(path("one"));
    ASSERT_EQ(launch_fsdp(1, run("one", options)).exit_code, 0);
    for (const auto& [ranks, mesh] : meshes) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + options + " " + mesh);
      std::filesystem::remove_all(path("cut"));
      const CommandResult result = launch_fsdp(ranks, run("cut", std::string(options) + " " + mesh));
      ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
      EXPECT_TRUE(contains(result.out, "train: pipeline of layers 0")) << result.out;
      // Orthogonalizing in bf16 makes more of the order of sums.
      expect_same_run("cut", "one", contains(options, "muon") ? 1e-3 : 1e-5);
    }
  }
}

TEST_F(MeshAxes, HalfPrecisionFollowsOneRank) {
  for (const char* precision : {"bf16", "fp16"}) {
    const std::string options = std::string("--shard.precision=") + precision;
    for (const char* folder : {"one", "cut"}) std::filesystem::remove_all(path(folder));
    ASSERT_EQ(launch_fsdp(1, run("one", options)).exit_code, 0);
    for (const char* mesh : {"--mesh.tp=2", "--mesh.pp=2 --train.microbatch_sequences=3"}) {
      std::filesystem::remove_all(path("cut"));
      const CommandResult result = launch_fsdp(4, run("cut", options + " " + mesh));
      ASSERT_EQ(result.exit_code, 0) << precision << mesh << result.err;
      expect_same_run("cut", "one", 1e-2);
    }
  }
}

// Checkpoints hold whole tensors: killed on one mesh, a run goes on on any other.
TEST_F(MeshAxes, ARunGoesOnOnAnotherMesh) {
  const std::string longer = "--train.steps=28 --checkpoint.every_steps=1 ";
  ASSERT_EQ(launch_fsdp(1, run("one", longer)).exit_code, 0);
  const Legs legs = {
      {8, "--mesh.pp=2 --mesh.tp=2"},
      {4, ""},
      {3, ""},
      {4, "--mesh.tp=2"},
      {4, "--mesh.pp=4 --mesh.schedule=zero_bubble --train.microbatch_sequences=3"},
      {4, "--mesh.tp=4"},
      {4, "--mesh.cp=2 --mesh.tp=2"},
      {2, "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2 --train.microbatch_sequences=3"},
      {2, "--mesh.cp=2"},
      {1, ""}};
  expect_run_over(legs, [&](const std::string& mesh) { return run("elastic", longer + mesh); });
}

TEST_F(MeshAxes, TheSameMeshGoesOnBitForBit) {
  const std::string options = "--mesh.tp=2 --checkpoint.every_steps=4 ";
  ASSERT_EQ(launch_fsdp(4, run("whole", options)).exit_code, 0);
  EXPECT_EQ(launch_fsdp(4, run("parts", options), {"FSDP_FAULT=kill@step.backward:rank=1:hit=7"}).exit_code, 137);
  ASSERT_EQ(launch_fsdp(4, run("parts", options)).exit_code, 0);
  EXPECT_EQ(ledger("parts"), ledger("whole"));
}

TEST_F(MeshAxes, SamplesDoNotDisturbTheTraining) {
  const std::string samples = " --sample.every_steps=5 --sample.max_tokens=5 --sample.prompts=line|";
  ASSERT_EQ(launch_fsdp(1, run("one", samples)).exit_code, 0);
  for (const std::string mesh : {"--mesh.tp=2",
                                 "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2 "
                                 "--train.microbatch_sequences=6"}) {
    for (const char* folder : {"plain", "sampled"}) std::filesystem::remove_all(path(folder));
    ASSERT_EQ(launch_fsdp(2, run("plain", mesh)).exit_code, 0);
    const CommandResult result = launch_fsdp(2, run("sampled", mesh + samples));
    ASSERT_EQ(result.exit_code, 0) << mesh << result.err;
    EXPECT_EQ(ledger("sampled"), ledger("plain")) << mesh;
    EXPECT_EQ(read_lines(path("sampled") + "/samples.jsonl"), read_lines(path("one") + "/samples.jsonl")) << mesh;
    EXPECT_EQ(run_fsdp("generate " + path("sampled") + "/model --prompt line --max-tokens 3").exit_code, 0);
  }
}

// What a run of stages leaves is a model like any other, and where another begins.
TEST_F(MeshAxes, TheModelOfStagesIsWhole) {
  for (const std::string tied : {"true", "false"}) {
    const std::string options = "--model.tie_embeddings=" + tied + " ";
    for (const char* folder : {"one", "cut", "next", "next_of_one"}) std::filesystem::remove_all(path(folder));
    ASSERT_EQ(launch_fsdp(1, run("one", options)).exit_code, 0);
    ASSERT_EQ(launch_fsdp(2, run("cut", options + "--mesh.pp=2 --train.microbatch_sequences=3")).exit_code, 0);
    const std::string further = " --train.lr=1e-4 ";
    ASSERT_EQ(launch_fsdp(1, run("next_of_one", "--model.path=" + path("cut") + "/model" + further)).exit_code, 0);
    const CommandResult result = launch_fsdp(
        4, run("next", "--model.path=" + path("cut") + "/model --mesh.pp=2 --train.microbatch_sequences=2" + further));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    expect_same_run("next", "next_of_one");
    EXPECT_NEAR(heldout_loss("cut"), heldout_loss("one"), 2e-5 * heldout_loss("one"));
  }
}

// Weights, gradients, optimizer and buffers of a rank have the bytes that were planned.
TEST_F(MeshAxes, TheRunIsAsPlanned) {
  const std::vector<std::pair<int, std::string>> meshes = {
      {2, "--mesh.tp=2"},
      {4, "--mesh.tp=2 --shard.precision=bf16 --train.recompute=block"},
      {4, "--mesh.tp=2 --shard.strategy=optim_grads"},
      {4, "--mesh.tp=2 --shard.replicas=2 --shard.strategy=hybrid"},
      {2, "--mesh.cp=2"},
      {4, "--mesh.cp=2 --mesh.tp=2"},
      {2, "--mesh.cp=2 --mesh.cp_exchange=ring"},
      {4, "--mesh.cp=2 --shard.strategy=optim"}};
  expect_as_planned(meshes);
  expect_dry_run("--mesh.cp=2 --mesh.tp=2", {"1 x 2 ranks x tp 2, cp 2 of the shards", "gather activations over tp",
                                             "reduce-scatter activations over cp"});
  expect_dry_run("--mesh.cp=4 --mesh.cp_exchange=ring", {"cp 4 of the shards (ring)", "receive activations over cp"});
}

TEST_F(MeshAxes, StagesAreAsPlanned) {
  const std::vector<std::pair<int, std::string>> meshes = {
      {2, "--mesh.pp=2 --train.microbatch_sequences=3"},
      {4, "--mesh.pp=2 --train.microbatch_sequences=2"},
      {4, "--mesh.pp=2 --train.microbatch_sequences=1 --shard.strategy=optim_grads --shard.precision=bf16"},
      {4, "--mesh.pp=2 --mesh.tp=2 --train.microbatch_sequences=3 --model.tie_embeddings=false"},
      {4, "--mesh.pp=4 --train.microbatch_sequences=1 --mesh.schedule=gpipe --train.recompute=block"},
      {2, "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2 --train.microbatch_sequences=2"},
      {4,
       "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2 --train.microbatch_sequences=1 "
       "--shard.strategy=optim"},
      {4,
       "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2 --train.microbatch_sequences=3 "
       "--shard.strategy=optim_grads --model.tie_embeddings=false"},
      {4, "--mesh.pp=4 --mesh.schedule=zero_bubble --train.microbatch_sequences=2"},
      {4, "--mesh.pp=2 --mesh.schedule=zero_bubble --train.microbatch_sequences=1 --shard.strategy=optim_grads"},
      {4, "--mesh.pp=2 --mesh.tp=2 --mesh.schedule=zero_bubble --train.microbatch_sequences=3"}};
  expect_as_planned(meshes);
  expect_dry_run("--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2 --train.microbatch_sequences=1",
                 {"2 x 2 stages (interleaved) of 1 x 2 ranks", "receive activations of other stages"});
  expect_dry_run("--mesh.pp=2 --train.microbatch_sequences=2",
                 {"2 stages (1f1b) of 1 x 2 ranks", "receive activations of other stages"});
}

TEST_F(MeshAxes, WhatDoesNotFitIsRefusedByName) {
  const struct {
    std::string command;
    const char* message;
  } refusals[] = {
      {run("bad", "--mesh.tp=2 --model.kv_heads=3 --model.heads=6 --model.hidden_size=48"),
       "3 heads of keys and values (model.kv_heads), expected a divisor or a multiple of it: 2 or 4"},
      {run("bad", "--mesh.tp=2 --data.sequence_length=31"), "a multiple of it: 30 or 32"},
      {run("bad", "--mesh.tp=2 --model.vocab_size=263"), "a multiple of it: 262 or 264"},
      {run("bad", "--mesh.tp=4"), "mesh.tp: got 4 for 2 ranks, expected a divisor of the number of ranks"},
      {run("bad", "--mesh.tp=2 --optimizer.name=muon"), "optimizer.name = \"muon\""},
      {run("bad", "--mesh.tp=2 --train.batch_sequences=0"), "train.batch_sequences"},
      {run("bad", "--mesh.tp=0"), "mesh.tp: got 0"},
      {run("bad", "--mesh.pp=3"), "mesh.pp: got 3 for 2 ranks, expected a divisor of the number of ranks"},
      {run("bad", "--mesh.pp=2 --model.layers=1"), "mesh.pp: got 2 with 1 layers (model.layers), expected a layer for"},
      {run("bad", "--mesh.stages_per_rank=2"), "mesh.stages_per_rank: got 2 without stages, expected 1"},
      {run("bad", "--mesh.pp=2 --mesh.stages_per_rank=2"), "got 2 with mesh.schedule = \"1f1b\", which has one stage"},
      {run("bad", "--mesh.pp=2 --mesh.schedule=interleaved"),
       "got interleaved with mesh.stages_per_rank = 1, expected"},
      {run("bad", "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=2 --train.microbatch_sequences=4"),
       "got interleaved with 3 microbatches a step, expected a multiple of mesh.pp = 2"},
      {run("bad", "--mesh.pp=2 --mesh.schedule=interleaved --mesh.stages_per_rank=9"),
       "mesh.pp: got 2 x 9 (mesh.stages_per_rank) with"},
      {run("bad", "--mesh.pp=2 --mesh.schedule=zero_bubble --train.recompute=block"),
       "got zero_bubble with train.recompute = \"block\""},
      {run("bad", "--mesh.pp=2 --shard.offload=disk"), "mesh.pp: got it with shard.offload = \"disk\""},
      {run("bad", "--mesh.pp=2 --train.world_invariant=true"), "train.world_invariant: got it with mesh.pp=2"},
      {run("bad", "--mesh.pp=2 --mesh.tp=2"), "shard.replicas x mesh.cp x mesh.tp x mesh.pp: got 1 x 1 x 2 x 2 for 2"},
      {run("bad", "--mesh.cp=2 --data.sequence_length=34"), "expected a multiple of 4, two chunks for each rank"},
      {run("bad", "--mesh.cp=2 --mesh.tp=2"), "shard.replicas x mesh.cp x mesh.tp: got 1 x 2 x 2 for 2 ranks"}};
  for (const auto& refusal : refusals) {
    const CommandResult result = launch_fsdp(2, refusal.command);
    EXPECT_EQ(result.exit_code, 2) << refusal.command << result.out;
    EXPECT_TRUE(contains(result.err, refusal.message)) << refusal.command << result.err;
  }
  const CommandResult plan = run_fsdp("plan " + path("run.toml") + " --world 3 --mesh.tp=3");
  EXPECT_EQ(plan.exit_code, 2) << plan.out;
  EXPECT_TRUE(contains(plan.err, "[plan] tp: got 3 with 4 attention heads, expected one of 1")) << plan.err;
  const CommandResult simulated = run_fsdp("train " + path("run.toml") + " --mesh.tp=2 --simulate-world=4");
  EXPECT_EQ(simulated.exit_code, 2) << simulated.out;
  EXPECT_TRUE(contains(simulated.err, "got it with mesh.tp=2")) << simulated.err;
  EXPECT_FALSE(std::filesystem::exists(path("bad") + "/model"));
}

class MeshOfExperts : public MeshAxes {
 protected:
  static std::string whole_file(const std::string& name) {
    std::ifstream file(name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
};

TEST_F(MeshOfExperts, TrainAsOneRankDoes) {
  const struct {
    const char* family;
    const char* options;
    std::vector<std::pair<int, const char*>> meshes;
  } groups[] = {{"mixtral",
                 "",
                 {{2, "--mesh.ep=2"},
                  {4, "--mesh.ep=2"},
                  {4, "--mesh.ep=4"},
                  {3, ""},
                  {4, "--mesh.ep=2 --mesh.cp=2"},
                  {4, "--mesh.ep=2 --shard.strategy=hybrid --shard.replicas=2"},
                  {4, "--mesh.ep=4 --shard.strategy=optim --train.recompute=block"},
                  {2, "--mesh.ep=2 --check.compare_replicas_every=3 --check.compute_twice_every=4"}}},
                {"qwen3_moe",
                 "--model.expert_ffn_size=24 --train.z_loss=1e-3 --tune.frozen=*layers.0*",
                 {{2, "--mesh.ep=2"}, {4, "--mesh.ep=2"}}}};
  for (const auto& [family, options, meshes] : groups) {
    std::filesystem::remove_all(path("one"));
    const CommandResult one = launch_fsdp(1, run_experts("one", options, family));
    ASSERT_EQ(one.exit_code, 0) << one.err;
    for (const auto& [ranks, mesh] : meshes) {
      SCOPED_TRACE(std::string(family) + ", " + std::to_string(ranks) + " ranks, " + mesh);
      std::filesystem::remove_all(path("spread"));
      const CommandResult result = launch_fsdp(ranks, run_experts("spread", std::string(options) + " " + mesh, family));
      ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
      expect_same_run("spread", "one");
      const double share = read_lines(path("spread") + "/metrics.jsonl")[0]["fullest_expert"];
      EXPECT_GE(share, 1.0 / 8);
      const double busiest = read_lines(path("spread") + "/metrics.jsonl")[0]["busiest_experts"];
      EXPECT_GE(busiest, 1);
      EXPECT_LE(busiest, ranks);
      EXPECT_NEAR(share, read_lines(path("one") + "/metrics.jsonl")[0]["fullest_expert"].get<double>(), 0.02);
    }
  }
}

TEST_F(MeshOfExperts, ARunGoesOnOnAnotherMesh) {
  const std::string longer = "--train.steps=16 --checkpoint.every_steps=1 ";
  ASSERT_EQ(launch_fsdp(1, run_experts("one", longer)).exit_code, 0);
  const Legs legs = {{4, "--mesh.ep=2"}, {1, ""}, {4, "--mesh.ep=4"}, {3, ""}, {2, "--mesh.ep=2"}};
  expect_run_over(legs, [&](const std::string& mesh) { return run_experts("elastic", longer + mesh); });
}

// Every rank sends the same prompt through the experts of all.
TEST_F(MeshOfExperts, SamplesAndTheSavedModel) {
  const std::string sampled = "--sample.every_steps=5 --sample.max_tokens=5 --sample.prompts=line| ";
  ASSERT_EQ(launch_fsdp(2, run_experts("plain", "--mesh.ep=2")).exit_code, 0);
  const CommandResult result =
      launch_fsdp(2, run_experts("sampled", sampled + "--mesh.ep=2 --checkpoint.every_steps=10"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(ledger("sampled"), ledger("plain"));
  EXPECT_EQ(read_lines(path("sampled") + "/samples.jsonl").size(), 4u);
  const std::string model = path("sampled") + "/model";
  for (const int ranks : {1, 2}) {
    const CommandResult text =
        launch_fsdp(ranks, "generate " + model + " --prompt line --max-tokens 6 --temperature 0");
    EXPECT_EQ(text.exit_code, 0) << ranks << text.err;
  }
  const CommandResult look = run_fsdp("inspect " + model);
  EXPECT_TRUE(contains(look.out, "block_sparse_moe.experts")) << look.out << look.err;
  EXPECT_TRUE(contains(look.out, "experts 8 of 48, 2 for a token")) << look.out;
  EXPECT_TRUE(contains(look.out, "the weights fit config.json")) << look.out << look.err;
  // A checkpoint holds experts as one tensor, a folder of Hugging Face one by one: the same bytes either way.
  ASSERT_EQ(run_fsdp("export " + path("sampled") + "/checkpoints/step-10 --out " + path("exported")).exit_code, 0);
  EXPECT_EQ(whole_file(path("exported") + "/model.safetensors"), whole_file(model + "/model.safetensors"));
  EXPECT_EQ(launch_fsdp(2, run_experts("again", "--model.path=" + model + " --mesh.ep=2")).exit_code, 0);
}

TEST_F(MeshOfExperts, TheRunIsAsPlanned) {
  const struct {
    int ranks;
    std::string options;
    const char* family;
  } runs[] = {{2, "", "mixtral"},
              {2, "--mesh.ep=2", "mixtral"},
              {4, "--mesh.ep=2", "mixtral"},
              {4, "--mesh.ep=2 --shard.precision=bf16 --train.recompute=block", "qwen3_moe"},
              {4, "--mesh.ep=2 --shard.strategy=optim_grads --train.microbatch_sequences=1", "mixtral"},
              {4, "--mesh.ep=2 --shard.strategy=hybrid --shard.replicas=2", "mixtral"}};
  for (const auto& [ranks, options, family] : runs) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + options);
    expect_as_planned(ranks, run_experts("planned", options, family));
  }
  std::filesystem::remove_all(path("planned"));
  const CommandResult dry = launch_fsdp(4, run_experts("planned", "--mesh.ep=2 --dry-run"));
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  for (const char* text : {"1 x 4 ranks, ep 2 of the shards", "exchange activations over ep", "for a token"})
    EXPECT_TRUE(contains(dry.out, text)) << text << "\n" << dry.out;
}

TEST_F(MeshOfExperts, WhatDoesNotFitIsRefusedByName) {
  const std::pair<std::string, const char*> refusals[] = {
      {run_experts("bad", "--mesh.ep=2 --model.experts=7"), "7 experts of a layer (model.experts)"},
      {run_experts("bad", "--mesh.ep=4"), "mesh.ep: got 4 for 2 ranks"},
      {run_experts("bad", "--mesh.ep=2 --mesh.tp=2"),
       "shard.replicas x mesh.cp x mesh.tp x mesh.ep: got 1 x 1 x 2 x 2"},
      {run_experts("bad", "--mesh.tp=2 --shard.precision=fp8"), "got experts with shard.precision = \"fp8\""},
      {run("bad", "--mesh.ep=2"), "which has no experts"},
      {run_experts("bad", "--model.experts_per_token=9"), "num_experts_per_tok"}};
  for (const auto& [command, message] : refusals) {
    const CommandResult result = launch_fsdp(2, command);
    EXPECT_EQ(result.exit_code, 2) << command << result.out;
    EXPECT_TRUE(contains(result.err, message)) << command << result.err;
  }
  EXPECT_FALSE(std::filesystem::exists(path("bad") + "/model"));
  const CommandResult plan = run_fsdp("plan --preset mixtral-8x7b --world 9 --mesh ep=3");
  EXPECT_EQ(plan.exit_code, 2) << plan.out;
  EXPECT_TRUE(contains(plan.err, "[plan] ep: got 3 with 8 experts of a layer, expected one of 1, 2, 4, 8."))
      << plan.err;
}

}  // namespace
}  // namespace fsdp::app
