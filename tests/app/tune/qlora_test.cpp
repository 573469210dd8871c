// Adapters over a base in 4 bits, as a user trains, stops, resumes, merges and exports them.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/hub/model_folder.h"
#include "tests/app/tune/tuning_fixture.h"

namespace fsdp::app {
namespace {

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Qlora : public TuningFixture {
 protected:
  std::string tune(const std::string& folder, const std::string& more = "", const std::string& model = "") const {
    return train("--model.path=" + (model.empty() ? base() : model) + " --output.folder=" + path(folder) +
                 " --tune.method=lora --tune.lora_rank=4 --tune.lora_alpha=12 --train.lr=1e-2 " + more);
  }
  std::vector<double> losses(const std::string& folder) const {
    std::vector<double> values;
    for (const nlohmann::json& line : read_lines(path(folder) + "/metrics.jsonl")) {
      if (line.contains("loss")) values.push_back(line["loss"]);
    }
    return values;
  }
  double heldout(const std::string& folder) const {
    return read_lines(path(folder) + "/metrics.jsonl").back().at("heldout").at("nats_per_byte");
  }
  // Of a model on the held-out split, computed as a run with that precision computes it.
  double worth(const std::string& model, const std::string& precision) {
    const CommandResult result =
        run_fsdp(train("--model.path=" + model +
                       " --train.steps=1 --train.warmup_steps=1 --train.lr=0 --shard.precision=" + precision +
                       " --output.overwrite=replace --output.folder=" + path("worth")));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return heldout("worth");
  }
};

TEST_F(Qlora, LearnsAsAdaptersOfABaseInBf16Do) {
  const std::string how = "--train.steps=60 --shard.precision=bf16 ";
  ASSERT_EQ(launch_fsdp(2, tune("bf16", how)).exit_code, 0);
  const std::vector<double> expected = losses("bf16");
  for (const auto& [format, said] : {std::pair<std::string, std::string>{"nf4", "NF4 codes: "},
                                     {"nf4_all", "NF4 codes, embeddings and head too: "}}) {
    const CommandResult result = launch_fsdp(2, tune(format, how + "--tune.base=" + format));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(contains(result.out, "down_proj, base as " + said)) << result.out;
    const std::vector<double> actual = losses(format);
    ASSERT_EQ(actual.size(), 60u);
    double ours = 0, theirs = 0;
    for (size_t step = 40; step < 60; ++step) {
      ours += actual[step];
      theirs += expected[step];
    }
    EXPECT_NEAR(ours, theirs, 0.01 * theirs) << format;
    EXPECT_LT(actual.back(), actual.front() - 0.05) << format;
    EXPECT_NEAR(heldout(format), heldout("bf16"), 0.01 * heldout("bf16"));
    // The planner knows what it holds, to the byte.
    EXPECT_TRUE(contains(result.out, "this rank holds weights ")) << result.out;
    for (const char* part : {"weights", "gradients", "optimizer"}) {
      const size_t place = result.out.rfind(std::string(part) + " ");
      EXPECT_EQ(result.out.substr(result.out.find('(', place), 9), "(+0.00 %)") << part << result.out;
    }
  }
}

TEST_F(Qlora, RanksDoNotMatter) {
  const std::string how = "--train.batch_sequences=12 --tune.base=nf4_all ";
  ASSERT_EQ(run_fsdp(tune("one", how)).exit_code, 0);
  const std::vector<double> expected = losses("one");
  for (const int ranks : {2, 3}) {
    const std::string run = "of_" + std::to_string(ranks);
    const CommandResult result = launch_fsdp(ranks, tune(run, how));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const std::vector<double> actual = losses(run);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t step = 0; step < expected.size(); ++step)
      EXPECT_NEAR(actual[step], expected[step], 1e-5 * expected[step]) << ranks << " ranks, step " << step;
  }
}

TEST_F(Qlora, StoppedRunsGoOnBitForBit) {
  struct Kind {
    const char* name;
    std::string options;
  };
  for (const Kind& kind : {Kind{"with the base", "--tune.base=nf4 "}, Kind{"with all of it", "--tune.base=nf4_all "},
                           Kind{"adapters alone, state on a disk",
                                "--tune.base=nf4_all --shard.offload=disk --checkpoint.content=adapter "}}) {
    const std::string how = kind.options +
                            "--shard.precision=bf16 --train.steps=9 --checkpoint.every_steps=4 "
                            "--resume=auto --output.overwrite=replace";
    std::filesystem::remove_all(path("straight"));
    std::filesystem::remove_all(path("stopped"));
    const CommandResult straight = launch_fsdp(2, tune("straight", how));
    ASSERT_EQ(straight.exit_code, 0) << kind.name << straight.err;
    const CommandResult stopped = launch_fsdp(2, tune("stopped", how), {"FSDP_FAULT=term@step.end:rank=1:hit=5"});
    ASSERT_EQ(stopped.exit_code, 75) << kind.name << stopped.err;
    const CommandResult resumed = launch_fsdp(2, tune("stopped", how));
    ASSERT_EQ(resumed.exit_code, 0) << kind.name << resumed.err;
    for (const char* file : {"/ledger.jsonl", "/model/adapter_model.safetensors"})
      EXPECT_TRUE(bytes_of(path("stopped") + file) == bytes_of(path("straight") + file)) << kind.name << file;
  }
}

// What was trained is the decoded base and its adapter: a checkpoint has both, and so has the base as bitsandbytes
// stores it where embeddings and head are no codes.
TEST_F(Qlora, MergesIntoTheBaseThatWasTrainedOn) {
  for (const std::string format : {"nf4_all", "nf4"}) {
    for (const char* folder : {"run", "whole"}) std::filesystem::remove_all(path(folder));
    const CommandResult result =
        launch_fsdp(2, tune("run", "--train.steps=8 --checkpoint.every_steps=8 --tune.base=" + format));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const std::string step = path("run") + "/checkpoints/step-8";
    ASSERT_EQ(run_fsdp("verify " + step).exit_code, 0);
    const CommandResult whole = run_fsdp("export " + step + " --dtype fp32 -o " + path("whole"));
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    EXPECT_NEAR(worth(path("whole"), "fp32"), heldout("run"), 1e-6) << format;
  }

  const CommandResult coded = run_fsdp("export " + base() + " --dtype nf4 -o " + path("coded"));
  ASSERT_EQ(coded.exit_code, 0) << coded.err;
  const CommandResult merged =
      run_fsdp("export " + path("run") + "/model --merge " + path("coded") + " --dtype fp32 -o " + path("merged"));
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  const io::ModelFolder ours = io::ModelFolder::open(path("whole")), theirs = io::ModelFolder::open(path("merged"));
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  std::vector<float> of_step(48 * 32), of_base(of_step.size());
  ours.read(name, 0, 48 * 32, of_step.data());
  theirs.read(name, 0, 48 * 32, of_base.data());
  EXPECT_EQ(of_step, of_base);
}

TEST_F(Qlora, FoldersOfBitsandbytesComeBack) {
  ASSERT_EQ(run_fsdp("export " + base() + " --dtype nf4 -o " + path("coded")).exit_code, 0);
  const nlohmann::json config = nlohmann::json::parse(bytes_of(path("coded") + "/config.json"));
  EXPECT_EQ(config["quantization_config"]["quant_method"], "bitsandbytes");
  const io::ModelFolder coded = io::ModelFolder::open(path("coded"));
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const auto codes = coded.find(name), absmax = coded.find(name + ".absmax");
  ASSERT_TRUE(codes && absmax && coded.find(name + ".quant_state.bitsandbytes__nf4"));
  EXPECT_EQ(codes->entry->shape, (std::vector<int64_t>{32 * 32 / 2, 1}));
  EXPECT_EQ(absmax->entry->shape, (std::vector<int64_t>{32 * 32 / 64}));
  // Training refuses it by name, as a file whose numbers are not the weights.
  const CommandResult refused = run_fsdp(tune("refused", "", path("coded")));
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_TRUE(contains(refused.err, "quantization_config")) << refused.err;

  ASSERT_EQ(run_fsdp("import " + path("coded") + " --dtype fp32 -o " + path("back")).exit_code, 0);
  const io::ModelFolder before = io::ModelFolder::open(base()), after = io::ModelFolder::open(path("back"));
  ASSERT_EQ(after.names(), before.names());
  for (const std::string& each : before.names()) {
    const int64_t numel = before.find(each)->entry->numel();
    std::vector<float> was(static_cast<size_t>(numel)), is(was.size());
    before.read(each, 0, numel, was.data());
    after.read(each, 0, numel, is.data());
    double square = 0, error = 0;
    for (size_t i = 0; i < was.size(); ++i) {
      square += static_cast<double>(was[i]) * was[i];
      error += std::pow(static_cast<double>(is[i]) - was[i], 2);
    }
    EXPECT_LT(error, 0.011 * square + 1e-12) << each;  // NF4 of normal numbers errs by a tenth
  }
}

// By what is wrong with them; nothing is decoded that was coded otherwise.
TEST_F(Qlora, RefusesOtherCodes) {
  ASSERT_EQ(run_fsdp("export " + base() + " --dtype nf4 -o " + path("coded")).exit_code, 0);
  const std::string file = path("coded") + "/model.safetensors", good = bytes_of(file);
  struct Change {
    const char *from, *to, *said;
  };
  for (const Change& change : {Change{"\"quant_type\":\"nf4\"", "\"quant_type\":\"fp4\"", "expected \"nf4\""},
                               Change{"\"blocksize\":64", "\"blocksize\":32", "blocksize: got 32, expected 64"},
                               Change{"\"shape\":[32,32]", "\"shape\":[32,64]", "512 elements of U8, expected 1024"},
                               Change{"q_proj.weight.absmax", "q_proj.weight.absmix", "q_proj.weight.absmax"},
                               Change{"bitsandbytes__nf4", "bitsandbytes__fp4", "expected nf4"}}) {
    std::string bad = good;
    const size_t place = bad.find(change.from);
    ASSERT_NE(place, std::string::npos) << change.from;
    bad.replace(place, std::string(change.from).size(), change.to);
    std::ofstream(file, std::ios::binary) << bad;
    const CommandResult imported = run_fsdp("import " + path("coded") + " -o " + path("back"));
    EXPECT_EQ(imported.exit_code, 4) << change.from;
    EXPECT_TRUE(contains(imported.err, change.said)) << change.said << "\n" << imported.err;
    if (std::string(change.from).find("size") == std::string::npos) continue;  // training reads them as import does
    const CommandResult trained =
        run_fsdp(tune("bad", "--tune.base=nf4 --train.steps=1 --train.warmup_steps=0", path("coded")));
    EXPECT_NE(trained.exit_code, 0) << change.from;
    EXPECT_TRUE(contains(trained.err, "q_proj") || contains(trained.err, "proj.weight")) << trained.err;
  }
}

TEST_F(Qlora, CheckpointsOfAdaptersAreAsLargeAsWhatTheyHold) {
  ASSERT_EQ(launch_fsdp(2, tune("run",
                                "--train.steps=2 --checkpoint.every_steps=2 --tune.base=nf4 --tune.lora_rank=64 "
                                "--checkpoint.content=adapter"))
                .exit_code,
            0);
  const auto weights = std::filesystem::file_size(path("run") + "/model/adapter_model.safetensors");
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path("run") + "/checkpoints/step-2"))
    if (entry.is_regular_file()) bytes += entry.file_size();
  EXPECT_LE(static_cast<double>(bytes), 1.1 * 3 * static_cast<double>(weights));

  // The base of a run is its numbers or its codes.
  const CommandResult other = run_fsdp(tune("other",
                                            "--tune.lora_rank=64 --checkpoint.content=adapter --train.steps=3 "
                                            "--resume=" +
                                                path("run") + "/checkpoints/step-2"));
  EXPECT_EQ(other.exit_code, 4);
  EXPECT_TRUE(contains(other.err, "with tune.base bf16") && contains(other.err, "another base")) << other.err;
}

TEST_F(Qlora, RefusesWhatDoesNotGoWithCodes) {
  struct Refusal {
    std::string options, named, instead;
  };
  for (const Refusal& refusal :
       {Refusal{"--tune.method=full", "tune.method = \"full\"", "expected lora"},
        Refusal{"--shard.precision=fp16", "shard.precision = \"fp16\"", "expected bf16 or fp32"},
        Refusal{"--shard.precision=fp8", "shard.precision = \"fp8\"", "expected bf16"},
        Refusal{"--train.projections=fused", "train.projections", "expected separate"},
        Refusal{"--mesh.pp=2", "mesh.pp = 2", "expected 1"},
        Refusal{"--tune.base=nf4_all --mesh.pp=2", "got nf4_all with mesh.pp = 2", "expected 1"},
        Refusal{"--tune.base=int4", "tune.base", "one of: bf16, nf4, nf4_all"}}) {
    const std::string command = tune("refused", "--tune.base=nf4 " + refusal.options);
    const CommandResult result = contains(refusal.options, "mesh") ? launch_fsdp(2, command) : run_fsdp(command);
    EXPECT_EQ(result.exit_code, 2) << refusal.options;
    EXPECT_TRUE(contains(result.err, refusal.named) && contains(result.err, refusal.instead)) << result.err;
  }
}

// Along a context too, adapters count on every map.
TEST_F(Qlora, AContextDoesNotMatter) {
  ASSERT_EQ(run_fsdp(tune("whole", "--tune.base=nf4_all")).exit_code, 0);
  const CommandResult result = launch_fsdp(2, tune("parts", "--tune.base=nf4_all --mesh.cp=2"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<double> expected = losses("whole"), actual = losses("parts");
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t step = 0; step < expected.size(); ++step)
    EXPECT_NEAR(actual[step], expected[step], 1e-5 * expected[step]) << "step " << step;
}

}  // namespace
}  // namespace fsdp::app
