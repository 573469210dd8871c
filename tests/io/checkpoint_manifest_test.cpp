#include "io/checkpoint/checkpoint_manifest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

CheckpointManifest sample() {
  CheckpointManifest manifest;
  manifest.step = 20;
  manifest.world_size = 2;
  manifest.created = "2026-01-31T12:00:00Z";
  manifest.writer = "fsdp 0.1.0";
  manifest.values = {{"data", {{"position", 176}, {"seed", UINT64_MAX}}}, {"lr", 0.1}, {"text", "line\n\"quoted\""}};
  manifest.files = {{"rank-00000-of-00002.safetensors", 4160, {{0x11, 0x22}}},
                    {"rank-00001-of-00002.safetensors", kChunkBytes + 1, {{1, 2}, {0xffffffffffffffff, 0}}}};
  manifest.tensors = {{"model/empty", DType::BF16, {0, 3}, {}},
                      {"model/scalar", DType::F64, {}, {{0, 4096, 0, 1}}},
                      {"model/weight", DType::F32, {4, 6}, {{0, 4160 - 32, 0, 8}, {1, 4096, 8, 24}}}};
  return manifest;
}

// `text` with `from` replaced by `to`, and a digest that fits.
std::string edited(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("the sample does not contain " + std::string(from));
  text.replace(at, from.size(), to);
  const size_t body = text.size() - 35;
  return text.substr(0, body) + hash_text(hash128(text.data(), body)) + "\"}\n";
}

Caught parse(const std::string& text) {
  return catch_error([&] { parse_manifest(text, "step-20/manifest.json"); });
}

TEST(CheckpointManifest, RoundTrip) {
  const CheckpointManifest before = sample();
  const CheckpointManifest after = parse_manifest(manifest_text(before), "x");
  EXPECT_EQ(after.step, 20);
  EXPECT_EQ(after.world_size, 2);
  EXPECT_EQ(after.created, before.created);
  EXPECT_EQ(after.writer, before.writer);
  EXPECT_EQ(after.values, before.values);
  EXPECT_EQ(after.values["data"]["seed"].get<uint64_t>(), UINT64_MAX);
  ASSERT_EQ(after.files.size(), 2u);
  EXPECT_EQ(after.files[1].name, before.files[1].name);
  EXPECT_EQ(after.files[1].bytes, kChunkBytes + 1);
  EXPECT_EQ(after.files[1].chunks, before.files[1].chunks);
  ASSERT_EQ(after.tensors.size(), 3u);
  const CheckpointTensor* weight = after.find("model/weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->shape, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(weight->numel(), 24);
  ASSERT_EQ(weight->parts.size(), 2u);
  EXPECT_EQ(weight->parts[1].file, 1u);
  EXPECT_EQ(weight->parts[1].offset, 4096u);
  EXPECT_EQ(weight->parts[1].begin, 8);
  EXPECT_EQ(weight->parts[1].end, 24);
  EXPECT_EQ(after.find("model/scalar")->numel(), 1);
  EXPECT_EQ(after.find("model/empty")->numel(), 0);
  EXPECT_EQ(after.find("model/"), nullptr);
  EXPECT_EQ(after.find("zzz"), nullptr);
  EXPECT_EQ(manifest_text(after), manifest_text(before));
}

TEST(CheckpointManifest, AnEmptyOneIsAManifestToo) {
  const CheckpointManifest after = parse_manifest(manifest_text({}), "x");
  EXPECT_TRUE(after.files.empty() && after.tensors.empty() && after.values.empty());
}

TEST(CheckpointManifest, TextIsAsDocumented) {
  CheckpointManifest manifest = sample();
  manifest.values = {{"schedule", {{"step", 20}}}};
  const std::string text = manifest_text(manifest);
  const std::string_view begin =
      R"({"format":"fsdp-checkpoint","version":1,"step":20,"world_size":2,"created":"2026-01-31T12:00:00Z",)"
      R"("writer":"fsdp 0.1.0","chunk_bytes":16777216,)"
      "\n"
      R"("values":{"schedule":{"step":20}},)"
      "\n"
      R"("files":[)"
      "\n"
      R"({"name":"rank-00000-of-00002.safetensors","bytes":4160,"chunks":["00000000000000110000000000000022"]},)";
  EXPECT_EQ(text.substr(0, begin.size()), begin);
  const std::string_view tensor =
      R"({"name":"model/weight","dtype":"F32","shape":[4,6],"parts":[[0,4128,0,8],[1,4096,8,24]]}],)"
      "\n\"digest\":\"";
  EXPECT_EQ(text.find(tensor) + tensor.size() + 35, text.size());
}

TEST(CheckpointManifest, HashIsXxh3) {
  EXPECT_EQ(hash_text(hash128("", 0)), "99aa06d3014798d86001c324468d497f");  // from the library's own test vectors
  EXPECT_EQ(hash_text(Hash128{0xab, 1}), "00000000000000ab0000000000000001");
}

TEST(CheckpointManifest, EveryRuleIsChecked) {
  const std::string good = manifest_text(sample());
  const struct {
    const char* from;
    const char* to;
    const char* says;
  } cases[] = {
      {R"("step":20)", R"("step":21)", "no error"},
      {R"("step":20)", R"("step":20,"new":[1])", "no error"},
      {R"({"format")", R"(["format")", "expected JSON"},
      {R"("fsdp-checkpoint")", R"("fsdp-model")", "got format 'fsdp-model'"},
      {R"("format":"fsdp-checkpoint",)", "", "got no \"format\""},
      {R"("version":1)", R"("version":2)", "got version 2, expected 1. Use the program that wrote it"},
      {R"("version":1)", R"("version":"1")", "in \"version\""},
      {R"("chunk_bytes":16777216)", R"("chunk_bytes":4096)", "got chunk_bytes 4096"},
      {R"("step":20)", R"("step":-1)", "got '-1' in \"step\""},
      {R"("step":20)", R"("step":20.0)", "got '20.0' in \"step\""},
      {R"("step":20)", R"("step":18446744073709551615)", "expected an integer from 0 to 2^63-1"},
      {R"("step":20)", R"("step":20,"step":21)", "key 'step' a second time"},
      {R"("world_size":2)", R"("world_size":0)", "got world_size 0"},
      {R"("world_size":2)", R"("world_size":4294967296)", "got world_size 4294967296"},
      {R"("created":"2026-01-31T12:00:00Z")", R"("created":7)", "got '7' as \"created\""},
      {R"("writer":)", R"("author":)", "got no \"writer\""},
      {R"("values":{)", R"("values":[],"old":{)", "got \"values\" that is no object"},
      {R"("files":[)", R"("files":{},"old":[)", "as \"files\", expected a list"},
      {R"("name":"rank-00000)", R"("name":"../rank-00000)", "got a name that is not plain"},
      {R"("name":"rank-00000)", R"("name":".rank-00000)", "does not start with '.'"},
      {R"("name":"rank-00000-of-00002.safetensors")", R"("name":"manifest.json")", "got a name that is not plain"},
      {R"("name":"rank-00000)", R"("name":"rank-00001)", "got the name twice"},
      {R"("name":"rank-00000-of-00002.safetensors")", R"("name":null)", "got 'null' as \"name\""},
      {R"("bytes":4160)", R"("bytes":0)", "expected at most 0"},
      {R"("bytes":4160)", R"("bytes":16777217)", "got hashes of 1 chunks, expected 2"},
      {R"("bytes":16777217)", R"("bytes":9223372036854775807)", "got hashes of 2 chunks, expected 549755813888"},
      {R"("bytes":4160)", R"("bytes":1e3)", "in \"bytes\""},
      {R"(["00000000000000110)", R"(["0000000000000011)", "expected 32 lower-case hexadecimal digits"},
      {R"(["0000000000000011)", R"(["000000000000001A)", "expected 32 lower-case hexadecimal digits"},
      {R"("chunks":["00000000000000110000000000000022"])", R"("chunks":[7])", "got '7' in \"chunks\""},
      {R"("model/scalar")", R"("model/empty")", "sorted by name, each once"},
      {R"("model/scalar")", R"("model/a")", "got it after 'model/empty'"},
      {R"("model/empty")", R"("")", "got an empty name"},
      {R"("F64")", R"("F65")", "tensor 'model/scalar': got dtype 'F65'"},
      {R"("shape":[4,6])", R"("shape":[4,6,1,1,1,1,1,1,1])", "in \"shape\", expected at most 8"},
      {R"("shape":[4,6])", R"("shape":[-4,6])", "got '-4' in \"shape\""},
      {R"("shape":[4,6])", R"("shape":[4294967296,4294967296])", "2^63 bytes or more"},
      {R"("shape":[4,6])", R"("shape":[2305843009213693952])", "2^63 bytes or more"},
      {R"("shape":[4,6])", R"("shape":[4,7])", "got parts of 24 elements, expected all 28"},
      {R"("shape":[4,6])", R"("shape":[4,5])", "by 20"},
      {R"([1,4096,8,24])", R"([1,4096,9,24])", "expected it to start at 8"},
      {R"([1,4096,8,24])", R"([1,4096,7,24])", "expected it to start at 8"},
      {R"([1,4096,8,24])", R"([1,4096,8,8])", "to end after that"},
      {R"([0,4128,0,8],[1,4096,8,24])", R"([1,4096,8,24],[0,4128,0,8])", "expected it to start at 0"},
      {R"([0,4128,0,8],[1,4096,8,24])", "", "got parts of 0 elements, expected all 24"},
      {R"([1,4096,8,24])", R"([1,4096,8])", "expected [file, offset, begin, end]"},
      {R"([1,4096,8,24])", R"({"file":1})", "expected [file, offset, begin, end]"},
      {R"([1,4096,8,24])", R"([2,4096,8,24])", "file number 2, expected one below 2"},
      {R"([1,4096,8,24])", R"([4294967297,4096,8,24])", "file number 4294967297"},
      {R"([0,4128,0,8])", R"([0,4129,0,8])", "got a part of 32 bytes at offset 4129, expected it to fit into the 4160"},
      {R"([0,4128,0,8])", R"([0,9223372036854775807,0,8])", "expected it to fit"},
      {R"([0,4128,0,8])", R"([0,-1,0,8])", "got '-1' in \"parts\""},
      {R"("shape":[4,6],"parts":[[0,4128,0,8],[1,4096,8,24]])",
       R"("shape":[2060],"parts":[[0,0,0,1030],[0,0,1030,2060]])", "got parts that share bytes of 'rank-00000"},
      {R"("text":"line)", "\"text\":\"\xff", "expected JSON in UTF-8"},
      {R"("lr":0.1)",
       R"("lr":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]])",
       "nested levels"},
  };
  for (const auto& c : cases) {
    const Caught error = parse(edited(good, c.from, c.to));
    EXPECT_TRUE(error.says(c.says)) << c.to << " -> " << error.text;
    if (std::string_view(c.says) == "no error") continue;
    EXPECT_EQ(error.kind, ErrorKind::kModel) << c.to;
    EXPECT_TRUE(error.says("step-20/manifest.json'") && error.is_one_line()) << error.text;
  }
}

TEST(CheckpointManifest, EveryFlippedBitIsRefused) {
  const std::string good = manifest_text(sample());
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      const Caught error = parse(bad);
      ASSERT_TRUE(error.kind == ErrorKind::kModel && error.says("digest")) << i << "." << bit << ": " << error.text;
      ASSERT_TRUE(error.says("resume=auto passes over it") && error.is_one_line()) << error.text;
    }
  }
}

TEST(CheckpointManifest, EveryTruncationAndExtensionIsRefused) {
  const std::string good = manifest_text(sample());
  for (size_t length = 0; length < good.size(); ++length) {
    ASSERT_TRUE(parse(good.substr(0, length)).says("do not end with a digest")) << length;
  }
  for (const char* more : {" ", "\n", "{}", "}", "\"}\n"}) EXPECT_EQ(parse(good + more).kind, ErrorKind::kModel);
  EXPECT_TRUE(parse(good + "\n").says("digest"));
  EXPECT_TRUE(parse(good + good).says("got the digest"));
}

TEST(CheckpointManifest, WhatNoReaderWouldTakeIsNotWritten) {
  const auto refused = [](auto change) {
    CheckpointManifest manifest = sample();
    change(manifest);
    const Caught error = catch_error([&] { manifest_text(manifest); });
    EXPECT_EQ(error.kind, ErrorKind::kUsage) << error.text;
    return error;
  };
  using M = CheckpointManifest;
  EXPECT_TRUE(refused([](M& m) { std::swap(m.tensors[0], m.tensors[1]); }).says("sorted by name"));
  EXPECT_TRUE(refused([](M& m) { m.tensors[2].parts.pop_back(); }).says("got parts of 8 elements"));
  EXPECT_TRUE(refused([](M& m) { m.tensors[2].shape = {-1, -24}; }).says("negative size"));
  EXPECT_TRUE(refused([](M& m) { m.files[0].chunks.clear(); }).says("got hashes of 0 chunks"));
  EXPECT_TRUE(refused([](M& m) { m.files[0].name = "a/b"; }).says("not plain"));
  EXPECT_TRUE(refused([](M& m) { m.step = -1; }).says("got step -1"));
  EXPECT_TRUE(refused([](M& m) { m.values = nlohmann::json::array(); }).says("no object"));
  EXPECT_TRUE(refused([](M& m) { m.values["a"] = {std::nan("")}; }).says("not finite"));
  EXPECT_TRUE(refused([](M& m) { m.values["a"] = -std::numeric_limits<double>::infinity(); }).says("not finite"));
  EXPECT_TRUE(refused([](M& m) { m.values["a"] = "\xff"; }).says("UTF-8"));
  EXPECT_TRUE(refused([](M& m) { m.tensors[2].name = "z\xff"; }).says("UTF-8"));
  EXPECT_TRUE(refused([](M& m) {
                for (int i = 0; i < 100; ++i) m.values = {{"a", m.values}};
              }).says("nested levels"));
}

TEST(CheckpointManifest, IsReadFromItsFolder) {
  const TemporaryFolder folder;
  const Caught missing = catch_error([&] { read_manifest(folder.path()); });
  EXPECT_TRUE(missing.kind == ErrorKind::kModel && missing.says("never finished")) << missing.text;
  EXPECT_TRUE(catch_error([&] { read_manifest(folder / "none"); }).says("never finished"));
  write_text(folder / kManifestName, manifest_text(sample()));
  EXPECT_EQ(read_manifest(folder.path()).step, 20);
  std::filesystem::resize_file(folder / kManifestName, (uint64_t{256} << 20) + 1);
  EXPECT_TRUE(catch_error([&] { read_manifest(folder.path()); }).says("expected at most 268435456"));
}

}  // namespace
}  // namespace fsdp::io
