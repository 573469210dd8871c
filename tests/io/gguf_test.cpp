// GGUF files, read back by a reader that shares nothing with the writer.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <random>

#include "io/base/error.h"
#include "io/gguf/gguf_writer.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

struct ReadTensor {
  std::vector<uint64_t> sizes;  // fastest first
  uint32_t type = 0;
  uint64_t begin = 0;  // in the file
};

class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(bytes_.substr(0, 4), "GGUF");
    at_ = 4;
    EXPECT_EQ(take<uint32_t>(), 3U);
    const auto num_tensors = take<uint64_t>(), num_values = take<uint64_t>();
    for (uint64_t i = 0; i < num_values; ++i) {
      const std::string key = take_text();
      values[key] = take_value(take<uint32_t>());
    }
    for (uint64_t i = 0; i < num_tensors; ++i) {
      ReadTensor& tensor = tensors[take_text()];
      tensor.sizes.resize(take<uint32_t>());
      for (uint64_t& size : tensor.sizes) size = take<uint64_t>();
      tensor.type = take<uint32_t>();
      tensor.begin = take<uint64_t>();
      EXPECT_EQ(tensor.begin % 32, 0U);
    }
    const size_t data = (at_ + 31) / 32 * 32;
    EXPECT_EQ(bytes_.substr(at_, data - at_), std::string(data - at_, '\0'));
    for (auto& [name, tensor] : tensors) tensor.begin += data;
  }

  template <class Number>
  Number number_at(uint64_t at) const {
    Number value{};
    EXPECT_LE(at + sizeof(Number), bytes_.size());
    std::memcpy(&value, bytes_.data() + at, sizeof(Number));
    return value;
  }
  size_t size() const { return bytes_.size(); }

  std::map<std::string, std::string> values;  // as text; arrays with commas
  std::map<std::string, ReadTensor> tensors;

 private:
  template <class Number>
  Number take() {
    const auto value = number_at<Number>(at_);
    at_ += sizeof(Number);
    return value;
  }
  std::string take_text() {
    const auto size = take<uint64_t>();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  std::string take_value(uint32_t type) {
    switch (type) {
      case 4:
        return "u32 " + std::to_string(take<uint32_t>());
      case 5:
        return "i32 " + std::to_string(take<int32_t>());
      case 6:
        return "f32 " + std::to_string(take<float>());
      case 7:
        return take<uint8_t>() != 0 ? "true" : "false";
      case 8:
        return take_text();
      case 9: {
        const auto element = take<uint32_t>();
        std::string all;
        for (auto left = take<uint64_t>(); left > 0; --left) all += take_value(element) + ",";
        return all;
      }
      default:
        ADD_FAILURE() << "type " << type;
        return "";
    }
  }

  std::string bytes_;
  size_t at_ = 0;
};

TEST(Gguf, MetadataAndTensors) {
  const TemporaryFolder folder;
  const GgufMetadata metadata = {{"a.text", std::string("llama")},
                                 {"a.count", uint32_t{7}},
                                 {"a.real", 0.5F},
                                 {"a.flag", true},
                                 {"a.texts", std::vector<std::string>{"x", "", "yz"}},
                                 {"a.numbers", std::vector<int32_t>{-1, 3}}};
  GgufWriter writer(folder / "m.gguf", metadata, {{"m", {3, 2}, GgmlType::kF16}, {"v", {5}, GgmlType::kF32}});
  const float vector[] = {1, 2, 3, 4, 5};
  writer.write_row(1, 0, vector);
  for (const int64_t row : {2, 0, 1}) {
    const float values[] = {static_cast<float>(row), -0.25F};
    writer.write_row(0, row, values);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "m.gguf"));
  writer.commit();
  const GgufFile file(folder / "m.gguf");
  const std::map<std::string, std::string> expected = {{"a.text", "llama"},        {"a.count", "u32 7"},
                                                       {"a.real", "f32 0.500000"}, {"a.flag", "true"},
                                                       {"a.texts", "x,,yz,"},      {"a.numbers", "i32 -1,i32 3,"}};
  EXPECT_EQ(file.values, expected);
  const ReadTensor& matrix = file.tensors.at("m");
  EXPECT_EQ(matrix.sizes, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(matrix.type, 1U);
  const uint16_t halves[] = {0x0000, 0xB400, 0x3C00, 0xB400, 0x4000, 0xB400};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(file.number_at<uint16_t>(matrix.begin + 2 * i), halves[i]) << i;
  const ReadTensor& row = file.tensors.at("v");
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(file.number_at<float>(row.begin + 4 * i), vector[i]);
  EXPECT_EQ(file.size(), (row.begin + 20 + 31) / 32 * 32) << "padded to the end";
}

// No number is further from what it was than half a step of its block's scale, and the scale is the largest / 127.
TEST(Gguf, EightBitBlocks) {
  constexpr int kSeed = 11;
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  std::vector<float> values(96);
  for (float& value : values) value = normal(random);
  std::fill(values.begin() + 64, values.end(), 0.0F);
  const TemporaryFolder folder;
  GgufWriter writer(folder / "m.gguf", {}, {{"q", {1, 96}, GgmlType::kQ8_0}});
  writer.write_row(0, 0, values.data());
  writer.commit();
  const GgufFile file(folder / "m.gguf");
  EXPECT_EQ(file.tensors.at("q").type, 8U);
  for (size_t block = 0; block < 3; ++block) {
    const uint64_t begin = file.tensors.at("q").begin + 34 * block;
    float largest = 0;
    for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[32 * block + i]));
    const auto bits = file.number_at<uint16_t>(begin);
    const float scale = bits == 0 ? 0 : std::ldexp(1024.0F + (bits & 0x3FF), (bits >> 10) - 25);
    EXPECT_NEAR(scale, largest / 127, largest / 127 / 2000) << "seed " << kSeed;
    for (size_t i = 0; i < 32; ++i) {
      const float back = scale * file.number_at<int8_t>(begin + 2 + i);
      EXPECT_NEAR(back, values[32 * block + i], 0.51F * scale + 127 * scale / 2000) << "seed " << kSeed;
    }
  }
}

TEST(Gguf, WhatDoesNotFitIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THROW(GgufWriter(folder / "m.gguf", {}, {{"q", {2, 40}, GgmlType::kQ8_0}}), Error);
  EXPECT_THROW(GgufWriter(folder / "m.gguf", {}, {{"q", {}, GgmlType::kF32}}), Error);
  GgufWriter writer(folder / "m.gguf", {}, {{"q", {2, 4}, GgmlType::kF32}});
  const float values[4] = {};
  writer.write_row(0, 0, values);
  EXPECT_THROW(writer.commit(), Error);
  EXPECT_EQ(folder.num_files(), 1U) << "only the writer's own, which it takes away";
}

}  // namespace
}  // namespace fsdp::io
