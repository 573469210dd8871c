#include "io/safetensors/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

// A file with that header text and `data_bytes` bytes of data.
std::string file_text(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), sizeof(length));
  text.append(header).append(data_bytes, '\7');
  return text;
}

Caught open_text(const std::filesystem::path& path, std::string_view text) {
  write_text(path, text);
  return catch_error([&] { SafetensorsFile::open(path); });
}

// Two float tensors, one of bytes and an empty one.
void write_sample(const std::filesystem::path& path) {
  SafetensorsWriter writer(path,
                           {{"w", DType::F32, {2, 3}},
                            {"bias", DType::BF16, {3}},
                            {"mask", DType::BOOL, {5}},
                            {"none", DType::F32, {0, 4}},
                            {"scalar", DType::F32, {}}},
                           {{"format", "pt"}});
  const std::vector<float> w = {1, 2, 3, 4, 5, 6};
  writer.write("w", 3, 3, w.data() + 3);
  const std::vector<uint16_t> bias = {10, 11, 12};
  writer.write("bias", 0, 3, bias.data());
  writer.write("mask", 0, 5, "\1\0\1\0\1");
  writer.write("w", 0, 3, w.data());
  const float scalar = 42;
  writer.write("scalar", 0, 1, &scalar);
  writer.commit();
}

TEST(Safetensors, RoundTrip) {
  const TemporaryFolder folder;
  write_sample(folder / "a.safetensors");
  EXPECT_EQ(folder.num_files(), 1u);
  const SafetensorsFile file = SafetensorsFile::open(folder / "a.safetensors");
  ASSERT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const TensorEntry* w = file.find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(w->numel(), 6);
  std::vector<float> values(4);
  file.read(*w, 2, 4, values.data());
  EXPECT_EQ(values, (std::vector<float>{3, 4, 5, 6}));
  file.read(*file.find("none"), 0, 0, nullptr);
  float scalar = 0;
  file.read(*file.find("scalar"), 0, 1, &scalar);
  EXPECT_EQ(scalar, 42);
  EXPECT_EQ(file.find("missing"), nullptr);
  for (const TensorEntry& entry : file.tensors()) EXPECT_EQ(entry.begin % item_size(entry.dtype), 0u) << entry.name;
}

TEST(Safetensors, HeaderIsAsTheReferenceWritesIt) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a", {{"b", DType::U8, {1}}, {"a", DType::F32, {1}}});
  writer.write("a", 0, 1, "\1\2\3\4");
  writer.write("b", 0, 1, "\5");
  writer.commit();
  std::string header =
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_text(folder / "a"), file_text(header, 0) + "\1\2\3\4\5");
}

TEST(Safetensors, ReadRangeIsChecked) {
  const TemporaryFolder folder;
  write_sample(folder / "a");
  const SafetensorsFile file = SafetensorsFile::open(folder / "a");
  const TensorEntry& w = *file.find("w");
  float out[8];
  const std::pair<int64_t, int64_t> ranges[] = {{-1, 2}, {0, 7}, {6, 1}, {7, 0}, {0, -1}, {1, INT64_MAX}};
  for (const auto& [first, count] : ranges) {
    const Caught error = catch_error([&] { file.read(w, first, count, out); });
    EXPECT_EQ(error.kind, ErrorKind::kUsage);
    EXPECT_TRUE(error.says("tensor 'w'")) << error.text;
  }
  EXPECT_EQ(catch_error([&] { file.read(w, 6, 0, out); }).text, "no error");
}

TEST(Safetensors, ReadsPastThePageCacheGiveTheSame) {
  const TemporaryFolder folder;
  std::vector<uint16_t> values(3'000'001);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i * 40503 >> 7);
  const auto numel = static_cast<int64_t>(values.size());
  SafetensorsWriter writer(folder / "a.safetensors", {{"first", DType::BF16, {7}}, {"w", DType::BF16, {numel}}});
  writer.write("first", 0, 7, values.data());
  writer.write("w", 0, numel, values.data());
  writer.commit();
  const int descriptor = ::open((folder / "a.safetensors").c_str(), O_RDONLY);
  ASSERT_EQ(::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(descriptor);

  const SafetensorsFile file = SafetensorsFile::open(folder / "a.safetensors");
  const TensorEntry& w = *file.find("w");
  const AlignedBuffer scratch(values.size() * 2 + 2 * kDirectAlignment);
  int past_cache = 0;
  for (const auto& [first, count] :
       std::vector<std::pair<int64_t, int64_t>>{{0, numel}, {1, 1'000'000}, {2'000'123, 999'878}, {777, 500'000}}) {
    const char* at = file.read_past_cache(file.bytes_of(w, first, count), scratch);
    if (at == nullptr) continue;  // in the cache, or on a file system that cannot
    ++past_cache;
    EXPECT_EQ(std::memcmp(at, values.data() + first, static_cast<size_t>(count) * 2), 0) << first;
  }
  EXPECT_EQ(file.read_past_cache(file.bytes_of(w, 0, 10), scratch), nullptr);
  EXPECT_EQ(catch_error([&] { file.bytes_of(w, 1, numel); }).kind, ErrorKind::kUsage);
  if (past_cache == 0) GTEST_SKIP() << "the file system of " << folder.path() << " reads through the page cache only";
}

TEST(Safetensors, FileThatShrinksWhileOpenIsAnError) {
  const TemporaryFolder folder;
  write_sample(folder / "a");
  const SafetensorsFile file = SafetensorsFile::open(folder / "a");
  std::filesystem::resize_file(folder / "a", 100);
  char out[64];
  const Caught error = catch_error([&] { file.read(*file.find("mask"), 0, 5, out); });
  EXPECT_EQ(error.kind, ErrorKind::kModel);
  EXPECT_TRUE(error.says("end of the file at byte 100") || error.says("end of the file at byte")) << error.text;
}

TEST(Safetensors, EveryRuleIsChecked) {
  const struct {
    const char* header;
    size_t data_bytes;
    const char* says;
  } cases[] = {
      {"{}", 0, "no error"},
      {"{}", 1, "got 1 bytes of data, expected 0"},
      {" {}", 0, "does not start with '{'"},
      {"[]", 0, "does not start with '{'"},
      {"", 0, "does not start with '{'"},
      {"{} x", 0, "expected JSON"},
      {R"({"a":1})", 0, "tensor 'a': got no {dtype"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "no error"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   )", 4, "no error"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "expected exactly these keys"},
      {R"({"a":{"dtype":"F32","shape":[1],"offsets":[0,4]}})", 4, "got no \"data_offsets\""},
      {R"({"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})", 8, "got dtype 'C64'"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,8]}})", 8, "got dtype '7'"},
      {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "shape that is no list"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "got '-1' in shape"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "got '1.0' in shape"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0.0,4]}})", 4, "in data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "no pair as data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "expected 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "expected 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "overflows"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0, "overflows"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0, "in shape"},
      {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1, "got 9 dimensions"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "got its data at byte 1, expected 0"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "tensor 'b': got its data at byte 1, expected 2"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3, "got 3 bytes of data, expected 2"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "got 1 bytes of data, expected 2"},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       0, "key 'a' a second time"},
      {R"({"__metadata__":[]})", 0, "__metadata__ that is no object"},
      {R"({"__metadata__":{"a":1}})", 0, "no string as __metadata__ 'a'"},
      {"{\"a\xff\":1}", 0, "expected JSON in UTF-8"},
      {R"({"a":[[[[[[[[[[]]]]]]]]]]})", 0, "nested levels"},
  };
  const TemporaryFolder folder;
  for (const auto& c : cases) {
    const Caught error = open_text(folder / "bad.safetensors", file_text(c.header, c.data_bytes));
    EXPECT_TRUE(error.says(c.says)) << c.header << " -> " << error.text;
    if (std::string_view(c.says) == "no error") continue;
    EXPECT_EQ(error.kind, ErrorKind::kModel) << c.header;
    EXPECT_TRUE(error.says("bad.safetensors") && error.is_one_line()) << error.text;
  }
}

TEST(Safetensors, HeaderLengthIsNotBelieved) {
  const TemporaryFolder folder;
  for (uint64_t length : {uint64_t{3}, uint64_t{100'000'001}, UINT64_MAX, UINT64_MAX - 7, uint64_t{1} << 63}) {
    std::string text = file_text("{}", 0);
    std::memcpy(text.data(), &length, sizeof(length));
    EXPECT_TRUE(open_text(folder / "a", text).says("got a header of " + std::to_string(length))) << length;
  }
  EXPECT_TRUE(open_text(folder / "a", "short").says("got 5 bytes, expected at least 8"));
  EXPECT_TRUE(catch_error([&] { SafetensorsFile::open(folder / "none"); }).says("no such file"));
  EXPECT_TRUE(catch_error([&] { SafetensorsFile::open(folder.path()); }).says("got a folder"));
}

// Opens the file and, if it is accepted, reads all of every tensor.
void read_everything(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  for (const TensorEntry& entry : file.tensors()) {
    std::vector<char> bytes(entry.end - entry.begin);
    file.read(entry, 0, entry.numel(), bytes.data());
  }
}

TEST(Safetensors, TruncationAtEveryLengthIsAnError) {
  const TemporaryFolder folder;
  write_sample(folder / "good");
  const std::string good = read_text(folder / "good");
  for (size_t length = 0; length < good.size(); ++length) {
    write_text(folder / "bad", good.substr(0, length));
    const Caught error = catch_error([&] { read_everything(folder / "bad"); });
    EXPECT_TRUE(error.kind == ErrorKind::kModel && error.is_one_line()) << length << ": " << error.text;
  }
}

TEST(Safetensors, EveryFlippedHeaderByteIsReadOrRefused) {
  const TemporaryFolder folder;
  write_sample(folder / "good");
  const std::string good = read_text(folder / "good");
  const size_t header_end = 8 + static_cast<unsigned char>(good[0]) + 256 * static_cast<unsigned char>(good[1]);
  int refused = 0;
  for (size_t i = 0; i < header_end; ++i) {
    for (int flip : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      write_text(folder / "bad", bad);
      const Caught error = catch_error([&] { read_everything(folder / "bad"); });
      if (error.text == "no error") continue;
      ++refused;
      EXPECT_TRUE(error.kind == ErrorKind::kModel && error.is_one_line()) << i << ": " << error.text;
    }
  }
  EXPECT_GT(refused, static_cast<int>(header_end) * 5);
}

RC_GTEST_PROP(SafetensorsProperty, AnyBytesAreReadOrRefused, (std::string header, uint8_t data_bytes)) {
  const TemporaryFolder folder;
  write_text(folder / "a", file_text("{" + header, data_bytes));
  catch_error([&] { read_everything(folder / "a"); });
}

RC_GTEST_PROP(SafetensorsProperty, PiecesInAnyOrderGiveTheTensor, (std::vector<uint16_t> values)) {
  const auto numel = static_cast<int64_t>(values.size());
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a", {{"x", DType::U16, {numel}}});
  std::vector<int64_t> cuts = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, numel + 1));
  cuts.insert(cuts.end(), {0, numel});
  std::sort(cuts.begin(), cuts.end());
  std::vector<size_t> pieces(cuts.size() - 1);
  std::iota(pieces.begin(), pieces.end(), size_t{0});
  for (size_t i = 1; i < pieces.size(); ++i) std::swap(pieces[i], pieces[*rc::gen::inRange<size_t>(0, i + 1)]);
  for (size_t piece : pieces)
    writer.write("x", cuts[piece], cuts[piece + 1] - cuts[piece], values.data() + cuts[piece]);
  writer.commit();
  const SafetensorsFile file = SafetensorsFile::open(folder / "a");
  std::vector<uint16_t> back(values.size());
  file.read(*file.find("x"), 0, numel, back.data());
  RC_ASSERT(back == values);
}

TEST(SafetensorsWriter, NothingAppearsWithoutCommit) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "a", {{"x", DType::U8, {2}}});
    writer.write("x", 0, 1, "a");
    const Caught error = catch_error([&] { writer.commit(); });
    EXPECT_EQ(error.kind, ErrorKind::kUsage);
    EXPECT_TRUE(error.says("tensor 'x': got 1 elements written, expected 2")) << error.text;
  }
  EXPECT_EQ(folder.num_files(), 0u);
}

TEST(SafetensorsWriter, MistakesAreNamed) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a", {{"x", DType::U8, {4}}});
  writer.write("x", 1, 2, "ab");
  for (const auto& [first, count] : {std::pair{0, 2}, {2, 1}, {1, 2}, {0, 4}, {2, 2}}) {
    EXPECT_TRUE(catch_error([&] { writer.write("x", first, count, "abcd"); }).says("second time")) << first;
  }
  EXPECT_TRUE(catch_error([&] { writer.write("x", 3, 2, "ab"); }).says("inside 4"));
  EXPECT_TRUE(catch_error([&] { writer.write("y", 0, 1, "a"); }).says("undeclared"));
  const auto declare = [&](std::vector<TensorDeclaration> tensors) {
    return catch_error([&] { SafetensorsWriter(folder / "b", tensors); });
  };
  EXPECT_TRUE(declare({{"x", DType::U8, {1}}, {"x", DType::F32, {1}}}).says("twice"));
  EXPECT_TRUE(declare({{"x", DType::U8, {-1}}}).says("sizes >= 0"));
  EXPECT_TRUE(declare({{"x", DType::U8, std::vector<int64_t>(9, 1)}}).says("rank <= 8"));
  EXPECT_TRUE(declare({{"x", DType::F32, {INT64_MAX}}}).says("2^63"));
  EXPECT_TRUE(declare({{"__metadata__", DType::F32, {1}}}).says("got a name"));
  EXPECT_TRUE(declare({{"\xff", DType::F32, {1}}}).says("UTF-8"));
}

TEST(DTypes, NamesRoundTrip) {
  for (const DTypeInfo& info : kDTypes) {
    EXPECT_EQ(dtype_of(name(info.dtype)), info.dtype);
    EXPECT_EQ(item_size(info.dtype), info.item_size);
  }
  EXPECT_EQ(dtype_of("F4"), std::nullopt);
}

}  // namespace
}  // namespace fsdp::io
