#include "io/hub/model_folder.h"

#include <gtest/gtest.h>

#include "io/base/json.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

void write_tensor(const std::filesystem::path& path, const std::string& name, float value) {
  SafetensorsWriter writer(path, {{name, DType::F32, {1}}});
  writer.write(name, 0, 1, &value);
  writer.commit();
}

std::string index_text(const std::string& weight_map, const std::string& metadata = R"({"total_size":8})") {
  return R"({"metadata":)" + metadata + R"(,"weight_map":)" + weight_map + "}";
}

Caught open_error(const std::filesystem::path& path) {
  return catch_error([&] { ModelFolder::open(path); });
}

void expect_value(const ModelFolder& model, const std::string& name, float expected) {
  float value = 0;
  model.read(name, 0, 1, &value);
  EXPECT_EQ(value, expected) << name;
}

TEST(ModelFolder, SingleFile) {
  const TemporaryFolder folder;
  write_tensor(folder / "model.safetensors", "a", 1);
  for (const auto& path : {folder.path(), folder / "model.safetensors"}) {
    const ModelFolder model = ModelFolder::open(path);
    EXPECT_EQ(model.names(), std::vector<std::string>{"a"});
    EXPECT_EQ(model.total_bytes(), 4u);
    EXPECT_EQ(model.declared_bytes(), std::nullopt);
    expect_value(model, "a", 1);
  }
}

TEST(ModelFolder, Shards) {
  const TemporaryFolder folder;
  write_tensor(folder / "s1.safetensors", "b", 2);
  write_tensor(folder / "s2.safetensors", "a", 1);
  write_text(folder / "model.safetensors.index.json", index_text(R"({"a":"s2.safetensors","b":"s1.safetensors"})"));
  ModelFolder opened = ModelFolder::open(folder.path());
  const ModelFolder model = std::move(opened);
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(model.total_bytes(), 8u);
  EXPECT_EQ(model.declared_bytes(), 8u);
  expect_value(model, "a", 1);
  expect_value(model, "b", 2);
  EXPECT_EQ(model.find("a")->file->path().filename(), "s2.safetensors");
  EXPECT_FALSE(model.find("c").has_value());
  EXPECT_TRUE(catch_error([&] { model.read("c", 0, 1, nullptr); }).says("got no tensor 'c'"));
}

TEST(ModelFolder, SymbolicLinksAreFollowed) {
  const TemporaryFolder blobs;
  const TemporaryFolder folder;
  write_tensor(blobs / "0123", "a", 7);
  std::filesystem::create_symlink(blobs / "0123", folder / "model.safetensors");
  expect_value(ModelFolder::open(folder.path()), "a", 7);
}

TEST(ModelFolder, BadIndexIsRefused) {
  const TemporaryFolder folder;
  write_tensor(folder / "s1.safetensors", "a", 1);
  const struct {
    std::string text;
    const char* says;
  } cases[] = {
      {index_text(R"({"a":"../s1.safetensors"})"), "plain file name"},
      {index_text(R"({"a":"/etc/passwd"})"), "got the file '/etc/passwd'"},
      {index_text(R"({"a":"s1.safetensors\u0000"})"), "plain file name"},
      {index_text(R"({"a":5})"), "got the file '5'"},
      {index_text(R"({"a":"none.safetensors"})"), "got no shard 'none.safetensors'"},
      {index_text(R"({"b":"s1.safetensors"})"), "tensor 'b': got no such tensor in shard 's1.safetensors'"},
      {index_text(R"({"a":"pytorch_model-1.bin"})"), "pickled weights"},
      {index_text(R"({"a":"s1.safetensors","a":"s1.safetensors"})"), "second time"},
      {index_text("{}"), "weight_map"},
      {index_text("[]"), "weight_map"},
      {"[]", "weight_map"},
      {"{", "expected JSON"},
  };
  for (const auto& c : cases) {
    write_text(folder / "model.safetensors.index.json", c.text);
    const Caught error = open_error(folder.path());
    EXPECT_EQ(error.kind, ErrorKind::kModel);
    EXPECT_TRUE(error.says(c.says) && error.says("index.json") && error.is_one_line()) << error.text;
  }
  for (const char* metadata : {"null", "{}", R"({"total_size":1.5e9})", R"({"total_size":-1})"}) {
    write_text(folder / "model.safetensors.index.json", index_text(R"({"a":"s1.safetensors"})", metadata));
    EXPECT_EQ(ModelFolder::open(folder.path()).declared_bytes(), std::nullopt);
  }
}

TEST(ModelFolder, WhatIsNotAModelIsNamed) {
  const TemporaryFolder folder;
  EXPECT_TRUE(open_error(folder.path()).says("without model.safetensors"));
  EXPECT_TRUE(open_error(folder / "none").says("got nothing there"));
  write_text(folder / "pytorch_model.bin", "x");
  EXPECT_TRUE(open_error(folder.path()).says("got pickled weights 'pytorch_model.bin'"));
  EXPECT_TRUE(open_error(folder / "pytorch_model.bin").says("pickled"));
  write_text(folder / "config.json", "{}");
  EXPECT_TRUE(open_error(folder / "config.json").says("got a file, expected a model folder"));
  std::filesystem::create_directory(folder / "model.safetensors");
  EXPECT_TRUE(open_error(folder.path()).says("got a folder, expected a file"));
}

}  // namespace
}  // namespace fsdp::io
