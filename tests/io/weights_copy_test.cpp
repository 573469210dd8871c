#include "io/weights/weights_copy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "io/base/hash.h"
#include "io/base/json.h"
#include "io/base/staged_folder.h"
#include "io/hub/model_folder.h"
#include "io/weights/open_weights.h"
#include "tests/io/checkpoint_sample.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

namespace fs = std::filesystem;

// A model folder: a float of each kind, integers, and what belongs to it.
void write_model(const fs::path& folder) {
  fs::create_directories(folder);
  const float wide[] = {1, 2.5F, -0.1F};
  const uint16_t narrow[] = {0x3F80, 0xBF80};
  const int64_t integers[] = {7};
  SafetensorsWriter writer(folder / "model.safetensors",
                           {{"a.wide", DType::F32, {3}},
                            {"a.narrow", DType::BF16, {2, 1}},
                            {"b.integers", DType::I64, {1}},
                            {"b.none", DType::F16, {0}}},
                           {{"format", "pt"}});
  writer.write("a.wide", 0, 3, wide);
  writer.write("a.narrow", 0, 2, narrow);
  writer.write("b.integers", 0, 1, integers);
  writer.commit();
  write_text(folder / "config.json", R"({"model_type": "llama", "torch_dtype": "float32"})");
  write_text(folder / "tokenizer.json", "{}");
  write_text(folder / "notes.txt", "not part of a model");
}

template <class Value>
std::vector<Value> elements(const fs::path& folder, const std::string& name) {
  const ModelFolder model = ModelFolder::open(folder);
  std::vector<Value> values(static_cast<size_t>(model.find(name)->entry->numel()));
  model.read(name, 0, static_cast<int64_t>(values.size()), values.data());
  return values;
}

DType dtype_in(const fs::path& folder, const std::string& name) {
  return ModelFolder::open(folder).find(name)->entry->dtype;
}

void copy_model(const fs::path& from, const OutputFolder& to, std::string_view prefix = "",
                std::optional<DType> dtype = {}) {
  const std::unique_ptr<WeightSource> source = open_weight_source(from);
  write_model_folder(*source, plan_copy(*source, prefix, dtype), to, source->config());
}

TEST(WeightsCopy, ModelFolderKeepsItsBits) {
  const TemporaryFolder folder;
  write_model(folder / "in");
  copy_model(folder / "in", {folder / "new/out"});
  EXPECT_EQ(elements<float>(folder / "new/out", "a.wide"), (std::vector<float>{1, 2.5F, -0.1F}));
  EXPECT_EQ(elements<uint16_t>(folder / "new/out", "a.narrow"), (std::vector<uint16_t>{0x3F80, 0xBF80}));
  EXPECT_EQ(elements<int64_t>(folder / "new/out", "b.integers"), std::vector<int64_t>{7});
  EXPECT_EQ(elements<uint16_t>(folder / "new/out", "b.none").size(), 0u);
  EXPECT_EQ(read_json_file(folder / "new/out/config.json")["torch_dtype"], "float32");
  EXPECT_TRUE(fs::exists(folder / "new/out/tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder / "new/out/notes.txt"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "new"), fs::directory_iterator()), 1) << "no leftovers";
}

TEST(WeightsCopy, ConvertsFloatsOnly) {
  const TemporaryFolder folder;
  write_model(folder / "in");
  copy_model(folder / "in", {folder / "narrow"}, "", DType::BF16);
  EXPECT_EQ(elements<uint16_t>(folder / "narrow", "a.wide"), (std::vector<uint16_t>{0x3F80, 0x4020, 0xBDCD}));
  EXPECT_EQ(dtype_in(folder / "narrow", "b.integers"), DType::I64);
  EXPECT_EQ(dtype_in(folder / "narrow", "b.none"), DType::BF16);
  EXPECT_EQ(read_json_file(folder / "narrow/config.json")["torch_dtype"], "bfloat16");
  copy_model(folder / "in", {folder / "wide"}, "", DType::F32);
  EXPECT_EQ(elements<float>(folder / "wide", "a.narrow"), (std::vector<float>{1, -1}));
}

// A limit of bytes cuts the weights into files with an index; what is read back is the same.
TEST(WeightsCopy, ShardsBySize) {
  const TemporaryFolder folder;
  write_model(folder / "in");
  const OutputFolder output = {.path = folder / "out", .overwrite = true, .max_shard_bytes = 16};
  copy_model(folder / "in", output);
  EXPECT_FALSE(fs::exists(folder / "out/model.safetensors"));
  const auto index = read_json_file(folder / "out/model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], 24);  // 4 + 12 and 8 + 0 bytes
  EXPECT_EQ(index["metadata"]["total_parameters"], 6);
  EXPECT_EQ(index["weight_map"]["a.narrow"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["a.wide"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["b.integers"], "model-00002-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["b.none"], "model-00002-of-00002.safetensors");
  const ModelFolder model = ModelFolder::open(folder / "out");
  EXPECT_EQ(model.declared_bytes(), model.total_bytes());
  EXPECT_EQ(elements<float>(folder / "out", "a.wide"), (std::vector<float>{1, 2.5F, -0.1F}));
  EXPECT_EQ(elements<int64_t>(folder / "out", "b.integers"), std::vector<int64_t>{7});
  // A tensor larger than the limit has a file to itself; no limit, one file; and a sharded folder may be replaced.
  copy_model(folder / "in", {.path = folder / "out", .overwrite = true, .max_shard_bytes = 1});
  EXPECT_EQ(read_json_file(folder / "out/model.safetensors.index.json")["weight_map"]["a.wide"],
            "model-00002-of-00003.safetensors");
  copy_model(folder / "in", {.path = folder / "out", .overwrite = true, .max_shard_bytes = 0});
  EXPECT_EQ(read_text(folder / "out/model.safetensors"), read_text(folder / "in/model.safetensors"));
}

TEST(WeightsCopy, TellsTransformersTypeAndTokens) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "in");
  const float value = 1;
  SafetensorsWriter writer(folder / "in/model.safetensors", {{"a", DType::F32, {1}}});
  writer.write("a", 0, 1, &value);
  writer.commit();
  write_text(folder / "in/config.json", R"({"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null})");
  copy_model(folder / "in", {folder / "narrow"}, "", DType::BF16);
  EXPECT_EQ(read_json_file(folder / "narrow/config.json")["dtype"], "bfloat16");
  const auto generation = read_json_file(folder / "narrow/generation_config.json");
  EXPECT_EQ(generation["eos_token_id"], (std::vector<int>{2, 3}));
  EXPECT_EQ(generation["bos_token_id"], 1);
  EXPECT_FALSE(generation.contains("pad_token_id"));
  write_text(folder / "in/generation_config.json", R"({"temperature": 0.6})");
  copy_model(folder / "in", {folder / "kept"});
  EXPECT_EQ(read_text(folder / "kept/generation_config.json"), R"({"temperature": 0.6})");
  EXPECT_EQ(read_json_file(folder / "kept/config.json")["dtype"], "float32");
}

TEST(ModelFolderWriter, EveryElementOnce) {
  const TemporaryFolder folder;
  const float values[2] = {1, 2};
  ModelFolderWriter writer(folder.path(), {{"a", DType::F32, {2}}, {"b", DType::F32, {2}}}, 8);
  writer.write("a", 1, 1, values);
  EXPECT_TRUE(catch_error([&] { writer.write("c", 0, 1, values); }).says("undeclared"));
  writer.write("a", 0, 1, values);
  EXPECT_TRUE(catch_error([&] { writer.write("a", 0, 1, values); }).says("a second time"));
  EXPECT_TRUE(catch_error([&] { writer.commit(); }).says("tensor 'b': got 0 elements written, expected 2"));
  EXPECT_FALSE(fs::exists(folder / "model.safetensors.index.json"));
  EXPECT_TRUE(catch_error([&] {
                ModelFolderWriter twice(folder.path(), {{"a", DType::F32, {1}}, {"a", DType::F32, {1}}}, 0);
              }).says("twice"));
}

TEST(WeightsCopy, PrefixSelectsAndIsDropped) {
  const TemporaryFolder folder;
  write_model(folder / "in");
  copy_model(folder / "in", {folder / "out"}, "b.");
  EXPECT_EQ(ModelFolder::open(folder / "out").names(), (std::vector<std::string>{"integers", "none"}));
  const Caught caught = catch_error([&] { copy_model(folder / "in", {folder / "other"}, "c."); });
  EXPECT_EQ(caught.kind, ErrorKind::kUsage);
  EXPECT_TRUE(caught.says("below the prefix 'c.', expected names that start with 'a.', 'b.'")) << caught.text;
  EXPECT_FALSE(fs::exists(folder / "other"));
}

TEST(WeightsCopy, DcpAndBack) {
  const TemporaryFolder folder;
  write_model(folder / "in");
  const std::unique_ptr<WeightSource> source = open_weight_source(folder / "in");
  write_dcp_folder(*source, plan_copy(*source, "", {}), {folder / "dcp"}, "state.model.");
  EXPECT_EQ(open_weight_source(folder / "dcp")->tensors()[0].name, "state.model.a.narrow");
  copy_model(folder / "dcp", {folder / "back"}, "state.model.");
  EXPECT_EQ(read_text(folder / "back/model.safetensors"), read_text(folder / "in/model.safetensors"));
}

// A checkpoint of two ranks, with what `fsdp train` stores beside the weights.
void write_checkpoint(const fs::path& root) {
  FileOps& files = system_files();
  const fs::path staging = start_checkpoint(files, root, 7, "test");
  CheckpointManifest manifest = write_sample_files(files, staging, 7, 3);
  manifest.tensors.push_back(manifest.tensors[1]);
  manifest.tensors[2].name = "optimizer/b/exp_avg";
  manifest.values["run"] = {
      {"model_config", R"({"model_type": "llama"})"}, {"fsdp_tokenizer.json", "{}"}, {"step", "7"}};
  commit_checkpoint(files, staging, manifest_text(manifest), root, 7);
}

TEST(WeightsCopy, CheckpointOfOurs) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "checkpoints");
  const std::unique_ptr<WeightSource> source = open_weight_source(folder / "checkpoints/step-7");
  EXPECT_EQ(source->description(), "checkpoint of step 7, written by 2 rank(s)");
  EXPECT_EQ(source->left_out(), std::vector<std::string>{"optimizer/b/exp_avg"});
  copy_model(folder / "checkpoints/step-7", {folder / "out"});
  const SampleTensors expected = sample_tensors(3);
  EXPECT_EQ(ModelFolder::open(folder / "out").names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(elements<uint8_t>(folder / "out", "a"), expected.a);
  EXPECT_EQ(elements<float>(folder / "out", "b"), expected.b);
  EXPECT_EQ(read_json_file(folder / "out/config.json")["model_type"], "llama");
  EXPECT_EQ(read_text(folder / "out/fsdp_tokenizer.json"), "{}");
  write_dcp_folder(*source, plan_copy(*source, "", {}), {folder / "dcp"}, "model.");
  copy_model(folder / "dcp", {folder / "again"}, "model.");
  EXPECT_EQ(elements<float>(folder / "again", "b"), expected.b);
}

// Whoever makes a checkpoint says where its tokenizer lies: no file is taken from there that its maker does not have.
TEST(WeightsCopy, ACheckpointNamesFilesOfOthersInVain) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "private");
  write_text(folder / "private/tokenizer.json", "known");
  write_text(folder / "private/merges.txt", "a secret");
  const std::string known = R"({"tokenizer.json": ")" + hash_text(hash_bytes("known")) + R"(", "merges.txt": "0"})";
  const auto left_out = [&](const std::string& name, const nlohmann::json& more) {
    FileOps& files = system_files();
    const fs::path staging = start_checkpoint(files, folder / name, 7, "test");
    CheckpointManifest manifest = write_sample_files(files, staging, 7, 3);
    manifest.values["run"] = {{"model_config", "{}"}, {"tokenizer_folder", (folder / "private").native()}};
    manifest.values["run"].update(more);
    commit_checkpoint(files, staging, manifest_text(manifest), folder / name, 7);
    copy_model(folder / name / "step-7", {folder / (name + "-out")});
    return open_weight_source(folder / name / "step-7")->left_out();
  };
  EXPECT_EQ(left_out("given", {{"tokenizer_files", known}}), std::vector<std::string>{});
  EXPECT_EQ(read_text(folder / "given-out/tokenizer.json"), "known");
  EXPECT_FALSE(fs::exists(folder / "given-out/merges.txt"));
  const std::string missing = "tokenizer (no file of the run in " + (folder / "private").native() + ")";
  EXPECT_EQ(left_out("without", nlohmann::json::object()), std::vector<std::string>{missing});
  EXPECT_FALSE(fs::exists(folder / "without-out/tokenizer.json"));
}

TEST(WeightsCopy, DamagedCheckpointIsNamed) {
  const TemporaryFolder folder;
  write_checkpoint(folder / "c");
  const fs::path file = folder / "c/step-7/rank-00001-of-00002.safetensors";
  std::string bytes = read_text(file);
  bytes[5000] = static_cast<char>(bytes[5000] ^ 1);
  write_text(file, bytes);
  const Caught caught = catch_error([&] { copy_model(folder / "c/step-7", {folder / "out"}); });
  EXPECT_EQ(caught.kind, ErrorKind::kModel);
  EXPECT_TRUE(caught.says("rank-00001-of-00002.safetensors")) << caught.text;
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(WeightsCopy, ExistingOutputIsSafe) {
  const TemporaryFolder folder;
  write_model(folder / "in");
  copy_model(folder / "in", {folder / "out"});
  const auto copy_error = [&](const fs::path& to, bool overwrite) {
    return catch_error([&] { copy_model(folder / "in", {to, overwrite}, "", DType::BF16); });
  };
  EXPECT_TRUE(copy_error(folder / "out", false).says("--overwrite"));
  EXPECT_EQ(dtype_in(folder / "out", "a.wide"), DType::F32);
  EXPECT_EQ(copy_error(folder / "out", true).text, "no error");
  EXPECT_EQ(dtype_in(folder / "out", "a.wide"), DType::BF16);
  fs::create_directories(folder / "home/projects");
  write_text(folder / "home/model.safetensors", "");
  EXPECT_TRUE(copy_error(folder / "home", true).says("Remove it yourself"));
  fs::create_directories(folder / "text");
  write_text(folder / "text/thesis.tex", "");
  EXPECT_TRUE(copy_error(folder / "text", true).says("Remove it yourself"));
  write_text(folder / "file", "");
  EXPECT_TRUE(copy_error(folder / "file", true).says("Remove it yourself"));
  EXPECT_TRUE(copy_error(folder / "in", true).says("same folder"));
  EXPECT_TRUE(copy_error(folder / "file/below", true).says("a folder to write to"));
  EXPECT_TRUE(fs::exists(folder / "home/projects") && fs::exists(folder / "text/thesis.tex"));
  EXPECT_EQ(folder.num_files(), 5u) << "no leftovers";
}

TEST(WeightsCopy, FailureLeavesNothing) {
  const TemporaryFolder folder;
  write_model(folder / "in");
  const std::unique_ptr<WeightSource> source = open_weight_source(folder / "in");
  const CopyPlan plan = plan_copy(*source, "", {});
  fs::resize_file(folder / "in/model.safetensors", fs::file_size(folder / "in/model.safetensors") - 4);
  for (const bool is_dcp : {false, true}) {
    const Caught caught = catch_error([&] {
      is_dcp ? write_dcp_folder(*source, plan, {folder / "out"}, "")
             : write_model_folder(*source, plan, {folder / "out"}, {});
    });
    EXPECT_EQ(caught.kind, ErrorKind::kModel) << caught.text;
    EXPECT_EQ(folder.num_files(), 1u);
  }
}

TEST(WeightsCopy, TypesThatCannotBeConverted) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "in");
  SafetensorsWriter writer(folder / "in/model.safetensors", {{"scaled", DType::F8_E4M3, {1}}});
  writer.write("scaled", 0, 1, "x");
  writer.commit();
  EXPECT_TRUE(
      catch_error([&] { copy_model(folder / "in", {folder / "out"}, "", DType::F32); }).says("Pass --dtype=keep"));
  copy_model(folder / "in", {folder / "out"});
  EXPECT_EQ(dtype_in(folder / "out", "scaled"), DType::F8_E4M3);
  const std::unique_ptr<WeightSource> dcp = open_weight_source(fs::path(FSDP_IO_TEST_DATA_DIR) / "dcp/one");
  const Caught caught = catch_error([&] { plan_copy(*dcp, "model.", {}); });
  EXPECT_TRUE(caught.says("'model.wave': got torch.complex64")) << caught.text;
  EXPECT_EQ(plan_copy(*dcp, "model.layer.", {}).outputs.size(), 2u);
}

TEST(WeightsCopy, SourcesThatAreNone) {
  const TemporaryFolder folder;
  const auto open_error = [&](const fs::path& path) { return catch_error([&] { open_weight_source(path); }); };
  EXPECT_TRUE(open_error(folder / "nothing").says("got nothing there"));
  EXPECT_TRUE(open_error(folder.path()).says("without model.safetensors"));
  fs::create_directories(folder / "run/checkpoints/step-3");
  EXPECT_TRUE(open_error(folder / "run").says("checkpoints/step-N"));
  write_text(folder / "run/checkpoints/step-3/manifest.json", "{}");
  EXPECT_TRUE(open_error(folder / "run/checkpoints").says("step-3' or another"));
  EXPECT_EQ(open_error(folder / "run/checkpoints/step-3").kind, ErrorKind::kModel);
}

// What a killed process left is removed; of a link that bears the name, the link alone.
TEST(StagedFolder, IsNewWhateverHadItsName) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "others");
  write_text(folder / "others/file", "theirs");
  const fs::path staging = make_staging_folder(folder / "missing/out");
  EXPECT_EQ(staging.parent_path(), folder / "missing");
  write_text(staging / "rest", "of a killed process");
  EXPECT_TRUE(fs::is_empty(make_staging_folder(folder / "missing/out")));
  fs::remove(staging);
  fs::create_directory_symlink(folder / "others", staging);
  EXPECT_TRUE(fs::is_empty(make_staging_folder(folder / "missing/out")));
  EXPECT_FALSE(fs::is_symlink(staging));
  EXPECT_EQ(read_text(folder / "others/file"), "theirs");
}

TEST(StagedFolder, TakesThePlaceOfAnOlderOne) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "out");
  write_text(folder / "out/file", "older");
  const fs::path staging = make_staging_folder(folder / "out");
  write_text(staging / "file", "newer");
  const fs::path retired = folder / (".out.old-" + std::to_string(::getpid()));
  fs::create_directories(retired);
  write_text(retired / "rest", "of a killed process");
  publish_folder(staging, folder / "out");
  EXPECT_EQ(read_text(folder / "out/file"), "newer");
  EXPECT_FALSE(fs::exists(staging));
  EXPECT_FALSE(fs::exists(retired));
}

TEST(StagedFolder, AnOlderOneStaysWhereTheNewerCannotGo) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "staging/out");
  write_text(folder / "staging/out/file", "older");
  // A folder cannot be moved into itself.
  const Caught caught = catch_error([&] { publish_folder(folder / "staging", folder / "staging/out"); });
  EXPECT_EQ(caught.kind, ErrorKind::kFileSystem);
  EXPECT_EQ(read_text(folder / "staging/out/file"), "older");
}

// A wrong path must not cost anything.
TEST(StagedFolder, ReplacesWeightsOfEveryKindAndNothingElse) {
  const TemporaryFolder folder;
  const auto stage = [&] { StagedFolder(folder / "out", true, 0).publish(); };
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors", ".metadata"}) {
    fs::create_directories(folder / "out");
    write_text(folder / "out/README.md", "older");
    EXPECT_TRUE(catch_error(stage).says("something else than a folder of weights"));
    write_text(folder / "out" / name, "older");
    EXPECT_EQ(catch_error(stage).text, "no error") << name;
    EXPECT_TRUE(fs::is_empty(folder / "out")) << name;
  }
}

TEST(StagedFolder, AsksForSpaceFirst) {
  const TemporaryFolder folder;
  const Caught caught = catch_error([&] { StagedFolder(folder / "out", false, ~uint64_t{0} / 2); });
  EXPECT_EQ(caught.kind, ErrorKind::kFileSystem);
  EXPECT_TRUE(caught.says("free bytes, expected at least")) << caught.text;
  EXPECT_EQ(folder.num_files(), 0u);
}

}  // namespace
}  // namespace fsdp::io
