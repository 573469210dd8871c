// Model folders as a user meets them: presets, what is inside, export in shards, and folders that are wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/base/json.h"
#include "tests/app/training_fixture.h"

namespace fsdp::app {
namespace {

namespace fs = std::filesystem;

class ModelFolders : public TrainingFixture {
 protected:
  // One line on standard error that holds `part`.
  static void expect_error(const CommandResult& result, int exit_code, const std::string& part) {
    EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_TRUE(contains(result.err, part)) << result.err;
  }
  static fs::path golden(const std::string& name) { return fs::path(FSDP_TEST_DATA_DIR) / "models" / name; }
  std::string copy_of(const std::string& name) const {
    fs::copy(golden(name), path(name), fs::copy_options::recursive);
    return path(name);
  }
};

TEST_F(ModelFolders, PresetsAreListedAndPrinted) {
  const CommandResult table = run_fsdp("inspect --presets");
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_TRUE(contains(table.out, "llama-3.1-405b")) << table.out;
  EXPECT_TRUE(contains(table.out, "405,853,388,800")) << table.out;
  const CommandResult one = run_fsdp("inspect --preset smollm3-3b");
  EXPECT_TRUE(contains(one.out, "3,075,098,624 exactly")) << one.out;
  const CommandResult json = run_fsdp("inspect --preset qwen2.5-7b --json");
  EXPECT_EQ(nlohmann::json::parse(json.out).at("model_type"), "qwen2");
  expect_error(run_fsdp("inspect --preset smollm3-3"), 2, "did you mean smollm3-3b?");
  expect_error(run_fsdp("inspect"), 2, "got nothing to inspect");
  expect_error(run_fsdp(train("--model.preset=llama3")), 2, "unknown preset 'llama3'");
  expect_error(run_fsdp("train --model.preset=smollm2-135m --model.layers=2 --data.path=" + path("data")), 2,
               "model.layers: got 2 with model.preset");
}

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// tests/io/gguf_test.cpp reads the format, tests/interop/gguf_round_trip.py the contents.
TEST_F(ModelFolders, ExportForLlamaCpp) {
  const std::string model = golden("llama3-mini").string(), file = path("m.gguf");
  const std::string command = "export " + model + " --format gguf --out ";
  const CommandResult result = run_fsdp(command + file);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "matrices as ")) << result.out;
  EXPECT_TRUE(contains(result.out, "the file has no vocabulary: the source has no tokenizer.json")) << result.out;
  const std::string bytes = bytes_of_file(file);
  EXPECT_EQ(bytes.substr(0, 4), "GGUF");
  for (const char* name : {"general.architecture", "llama.block_count", "blk.1.attn_q.weight", "token_embd.weight"})
    EXPECT_TRUE(contains(bytes, name)) << name;
  expect_error(run_fsdp(command + file), 2, "exists. Choose another file, or pass --overwrite.");
  EXPECT_EQ(run_fsdp(command + file + " --overwrite --dtype q8_0").exit_code, 0);
  EXPECT_LT(bytes_of_file(file).size(), bytes.size());
  expect_error(run_fsdp(command + path("text")), 2, "expected a file with --format=gguf");
  expect_error(run_fsdp(command + path("x.gguf") + " --dtype q4"), 2, "expected keep, fp32, fp16, bf16 or q8_0");
  expect_error(run_fsdp("export " + model + " --to gguf"), 2, "Give --format=gguf and a path as --out");
  expect_error(run_fsdp("export " + model + " --out " + path("y") + " --dtype q8_0"), 2,
               "expected keep, bf16, fp16, fp32, fp8 or nf4.");
  expect_error(run_fsdp("export " + model + " --format dcp --out " + path("y") + " --dtype nf4"), 2,
               "expected keep, bf16, fp16 or fp32.");
}

TEST_F(ModelFolders, ExportInHalfPrecision) {
  const CommandResult result =
      run_fsdp("export " + golden("qwen3-mini").string() + " --dtype fp16 --out " + path("half"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(io::read_json_file(path("half/config.json"), {}).at("dtype"), "float16");
  const CommandResult look = run_fsdp("inspect " + path("half"));
  EXPECT_TRUE(contains(look.out, "F16") && contains(look.out, "the weights fit config.json")) << look.out;
  EXPECT_EQ(run_fsdp("export " + path("half") + " --dtype fp32 --out " + path("whole")).exit_code, 0);
}

TEST_F(ModelFolders, InspectShowsTensorsAndWhetherTheyFit) {
  const CommandResult model = run_fsdp("inspect " + golden("qwen3-mini").string());
  ASSERT_EQ(model.exit_code, 0) << model.err;
  EXPECT_TRUE(contains(model.out, "model.layers.0-1.self_attn.q_norm.weight")) << model.out;
  EXPECT_TRUE(contains(model.out, "[40, 18]")) << model.out;
  EXPECT_TRUE(contains(model.out, "2 x 40 B")) << model.out;
  EXPECT_TRUE(contains(model.out, "norms of q and k")) << model.out;
  EXPECT_TRUE(contains(model.out, "the weights fit config.json")) << model.out;
  const CommandResult each = run_fsdp("inspect --tensors " + golden("qwen3-mini").string());
  EXPECT_TRUE(contains(each.out, "model.layers.1.self_attn.q_norm.weight")) << each.out;
  ASSERT_EQ(run_fsdp(train("--checkpoint.every_steps=6")).exit_code, 0);
  const CommandResult checkpoint = run_fsdp("inspect " + path("out/checkpoints/step-6"));
  ASSERT_EQ(checkpoint.exit_code, 0) << checkpoint.err;
  EXPECT_TRUE(contains(checkpoint.out, "step 6, written")) << checkpoint.out;
  EXPECT_TRUE(contains(checkpoint.out, "model/model.embed_tokens.weight")) << checkpoint.out;
  EXPECT_TRUE(contains(checkpoint.out, "model.layers.0-3.mlp.up_proj.weight")) << checkpoint.out;
  // What has no hashes here is not called whole.
  for (const std::string& unverified :
       {path("out/checkpoints/step-6"), path("out/model"), golden("qwen3-mini").string()})
    expect_error(run_fsdp("inspect --verify " + unverified), 2, "which is no data set, expected one. `fsdp verify`");
  const CommandResult data = run_fsdp("inspect --verify " + path("data"));
  EXPECT_TRUE(contains(data.out, "hashes match")) << data.out << data.err;
  expect_error(run_fsdp("inspect --verify " + path("nothing")), 4, "got nothing there");
}

TEST_F(ModelFolders, ExportInShardsComputesTheSame) {
  const std::string model = copy_of("mistral-mini");
  std::ofstream(model + "/tokenizer.json") << "{}";
  const CommandResult result = run_fsdp("export " + model + " --out=" + path("shards") + " --shard-size=10KB");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(path("shards/model-00001-of-00004.safetensors"))) << result.out;
  EXPECT_TRUE(fs::exists(path("shards/tokenizer.json")));
  EXPECT_EQ(io::read_json_file(path("shards/config.json")).at("dtype"), "float32");
  EXPECT_TRUE(fs::exists(path("shards/generation_config.json")));
  for (const int ranks : {1, 2}) {
    const CommandResult parity = run_fsdp("launch --nproc " + std::to_string(ranks) + " -- parity " + path("shards") +
                                          " --expected " + model + "/expected.safetensors");
    EXPECT_EQ(parity.exit_code, 0) << parity.out << parity.err;
  }
  expect_error(run_fsdp("export " + model + " --out=" + path("x") + " --shard-size=5XB"), 2, "--shard-size: got '5XB'");
}

TEST_F(ModelFolders, TrainsEveryFamilyFromKeysAndWritesWhatItReads) {
  for (const std::string family : {"mistral", "qwen2", "qwen3"}) {
    const std::string keys = "--model.family=" + family +
                             " --model.head_dim=12 --model.sliding_window=9 --train.z_loss=1e-4 "
                             "--train.label_smoothing=0.1 --output.folder=" +
                             path(family);
    const CommandResult result = launch_fsdp(2, train(keys));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto config = io::read_json_file(path(family) + "/model/config.json");
    EXPECT_EQ(config.at("model_type"), family);
    EXPECT_EQ(config.at("sliding_window"), 9);
    const CommandResult inspect = run_fsdp("inspect " + path(family) + "/model");
    EXPECT_TRUE(contains(inspect.out, "the weights fit config.json")) << inspect.out << inspect.err;
    const std::string resumed = "--model.path=" + path(family) + "/model --output.folder=" + path(family) + "-2";
    EXPECT_EQ(run_fsdp(train(resumed)).exit_code, 0);
  }
}

TEST_F(ModelFolders, WrongFoldersAreOneLine) {
  const std::string model = copy_of("llama3-mini");
  ASSERT_EQ(run_fsdp("export " + model + " --out=" + path("shards") + " --shard-size=20KB").exit_code, 0);
  fs::remove(path("shards/model-00002-of-00003.safetensors"));
  expect_error(run_fsdp("parity " + path("shards") + " --expected " + model + "/expected.safetensors"), 4,
               "got no shard 'model-00002-of-00003.safetensors'");
  fs::remove(model + "/model.safetensors");
  fs::create_directory(model + "/model.safetensors");
  expect_error(run_fsdp("inspect " + model), 4, "got a folder, expected a file");
  fs::remove(model + "/config.json");
  fs::create_directory(model + "/config.json");
  expect_error(run_fsdp(train("--model.path=" + model)), 4, "got a folder, expected a file");
  expect_error(run_fsdp("inspect " + path("nothing")), 4, "got nothing there");
}

}  // namespace
}  // namespace fsdp::app
