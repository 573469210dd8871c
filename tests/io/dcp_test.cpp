// Reads what PyTorch wrote (tests/io/data/dcp, see tests/io/data/README.md), damages it, and reads what we write.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <numeric>
#include <utility>

#include "io/dcp/dcp_metadata.h"
#include "io/dcp/dcp_writer.h"
#include "io/torch_archive/pickle_writer.h"
#include "io/torch_archive/saved_tensor.h"
#include "io/weights/open_weights.h"
#include "tests/io/temporary_folder.h"
#include "tests/support/usage.h"

namespace fsdp::io {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(FSDP_IO_TEST_DATA_DIR) / "dcp";

using Bytes = std::vector<char>;

// All elements of the source's tensors whose type can be read, by name; checks the order of the pieces.
std::map<std::string, Bytes> read_all(const WeightSource& source, const std::string& leave_out = "-") {
  std::vector<size_t> wanted;
  std::map<std::string, Bytes> all;
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const WeightTensor& tensor = source.tensors()[i];
    if (!tensor.dtype || tensor.name == leave_out) continue;
    wanted.push_back(i);
    all[tensor.name].reserve(static_cast<size_t>(tensor.numel()) * item_size(*tensor.dtype));
  }
  source.read(wanted, [&](size_t tensor, int64_t first, int64_t count, const void* elements) {
    const size_t item = item_size(*source.tensors()[tensor].dtype);
    Bytes& bytes = all[source.tensors()[tensor].name];
    EXPECT_EQ(bytes.size(), static_cast<size_t>(first) * item);
    const auto* begin = static_cast<const char*>(elements);
    bytes.insert(bytes.end(), begin, begin + static_cast<size_t>(count) * item);
  });
  return all;
}

// The values that make_dcp.py gives to elements [first, first + count) of a tensor.
Bytes values(DType dtype, int64_t count, int64_t first = 0) {
  Bytes bytes;
  const auto put = [&](auto value) {
    const auto* begin = reinterpret_cast<const char*>(&value);
    bytes.insert(bytes.end(), begin, begin + sizeof(value));
  };
  for (int64_t i = first; i < first + count; ++i) {
    const float real = static_cast<float>(i) / 4 - 3;
    if (dtype == DType::I64) put(i * 1000003 - 5);
    if (dtype == DType::F32) put(real);
    if (dtype == DType::BF16) put(static_cast<uint16_t>(std::bit_cast<uint32_t>(real) >> 16));  // exact
  }
  return bytes;
}

void copy_fixture(const char* name, const fs::path& to) { fs::copy(kData / name, to, fs::copy_options::recursive); }

TEST(Dcp, OneWriter) {
  const std::unique_ptr<WeightSource> source = open_weight_source(kData / "one");
  EXPECT_EQ(source->description(), "DCP checkpoint of 1 file(s)");
  EXPECT_EQ(source->left_out(), (std::vector<std::string>{"optimizer.lr", "step"}));
  EXPECT_EQ(source->config(), std::nullopt);
  std::vector<std::string> names;
  for (const WeightTensor& tensor : source->tensors()) names.push_back(tensor.name + " " + tensor.type);
  EXPECT_EQ(names, (std::vector<std::string>{"model.empty torch.float32", "model.layer.bias torch.bfloat16",
                                             "model.layer.weight torch.float32", "model.part torch.bfloat16",
                                             "model.position torch.int64", "model.scale torch.float32",
                                             "model.transposed torch.float32", "model.wave torch.complex64"}));
  EXPECT_EQ(source->tensors()[2].shape, (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(source->tensors()[5].shape, std::vector<int64_t>{});
  EXPECT_EQ(source->tensors()[7].dtype, std::nullopt);
  const std::map<std::string, Bytes> all = read_all(*source, "model.transposed");
  EXPECT_EQ(all.at("model.empty"), Bytes());
  EXPECT_EQ(all.at("model.layer.bias"), values(DType::BF16, 7));
  EXPECT_EQ(all.at("model.layer.weight"), values(DType::F32, 15));
  EXPECT_EQ(all.at("model.part"), values(DType::BF16, 12, 8));
  EXPECT_EQ(all.at("model.position"), values(DType::I64, 4));
  EXPECT_EQ(all.at("model.scale"), values(DType::F32, 1));
}

TEST(Dcp, OtherStridesAreRefused) {
  const std::unique_ptr<WeightSource> source = open_weight_source(kData / "one");
  const Caught caught = catch_error([&] { read_all(*source); });
  EXPECT_EQ(caught.kind, ErrorKind::kModel);
  EXPECT_TRUE(caught.says("shape [5, 3] with strides [1, 5], expected it row-major")) << caught.text;
  EXPECT_TRUE(caught.says("tensor.contiguous()")) << caught.text;
}

TEST(Dcp, FourWriters) {
  const DcpMetadata metadata = read_dcp_metadata(kData / "four");
  EXPECT_EQ(metadata.files.size(), 4u);
  const std::pair<const char*, size_t> num_chunks[] = {{"model.grid", 4},   {"model.rows", 3},  {"model.columns", 4},
                                                       {"model.hybrid", 2}, {"model.short", 2}, {"model.scale", 1}};
  for (const auto& [name, count] : num_chunks) {
    ASSERT_NE(metadata.find(name), nullptr) << name;
    EXPECT_EQ(metadata.find(name)->chunks.size(), count) << name;
  }
  EXPECT_EQ(metadata.find("model.none"), nullptr);
  EXPECT_EQ(metadata.find("model.grid")->chunks[3].offsets.size(), 2u);

  const std::map<std::string, Bytes> all = read_all(*open_weight_source(kData / "four"));
  EXPECT_EQ(all.size(), 6u);
  EXPECT_EQ(all.at("model.grid"), values(DType::F32, 30));
  EXPECT_EQ(all.at("model.rows"), values(DType::BF16, 15));
  EXPECT_EQ(all.at("model.columns"), values(DType::I64, 12));
  EXPECT_EQ(all.at("model.hybrid"), values(DType::F32, 24));
  EXPECT_EQ(all.at("model.short"), values(DType::F32, 4));
  EXPECT_EQ(all.at("model.scale"), values(DType::F32, 1));
}

// Damage //

TEST(Dcp, WhatIsMissingIsNamed) {
  const TemporaryFolder folder;
  const auto open_error = [&](const fs::path& path) {
    return catch_error([&] { read_all(*open_weight_source(path)); });
  };
  copy_fixture("four", folder / "a");
  fs::remove(folder / "a/__2_0.distcp");
  EXPECT_TRUE(open_error(folder / "a").says("__2_0.distcp': got no such file")) << open_error(folder / "a").text;
  fs::remove(folder / "a/.metadata");
  EXPECT_TRUE(open_error(folder / "a").says("without .metadata")) << open_error(folder / "a").text;
  copy_fixture("four", folder / "b");
  fs::rename(folder / "b/.metadata", folder / "b/__0.metadata");
  for (int rank = 0; rank < 4; ++rank) fs::remove(folder / "b" / ("__" + std::to_string(rank) + "_0.distcp"));
  EXPECT_TRUE(open_error(folder / "b").says("metadata of single ranks")) << open_error(folder / "b").text;
  copy_fixture("one", folder / "c");
  fs::copy_file(kData / "four/.metadata", folder / "c/.metadata", fs::copy_options::overwrite_existing);
  EXPECT_EQ(open_error(folder / "c").kind, ErrorKind::kModel);
  EXPECT_NE(open_error(folder / "c").text, "no error");
}

// Every prefix, and two flipped bits of every byte of .metadata: an Error, or metadata that obey the rules.
TEST(Dcp, DamagedMetadataNeverCrash) {
  for (const char* name : {"one", "four"}) {
    const std::string whole = read_text(kData / name / ".metadata");
    for (size_t size = 0; size < whole.size(); ++size) {
      const Caught caught = catch_error([&] { parse_dcp_metadata(whole.substr(0, size), "file"); });
      EXPECT_EQ(caught.kind, ErrorKind::kModel) << size;
    }
    size_t num_refused = 0;
    for (size_t place = 0; place < whole.size(); ++place) {
      for (const size_t bit : {place % 8, (place + 3) % 8}) {
        std::string bytes = whole;
        bytes[place] = static_cast<char>(bytes[place] ^ 1 << bit);
        const Caught caught = catch_error([&] { parse_dcp_metadata(bytes, "file"); });
        num_refused += caught.text == "no error" ? 0 : 1;
        EXPECT_TRUE(caught.is_one_line());
      }
    }
    EXPECT_GT(num_refused, whole.size()) << name;
  }
}

// Truncation anywhere and a flipped bit in every byte of an archive: an Error, or the same elements. CRCs see to it.
TEST(Dcp, DamagedFilesNeverGiveWrongElements) {
  const TemporaryFolder folder;
  copy_fixture("four", folder / "d");
  const DcpMetadata metadata = read_dcp_metadata(folder / "d");
  const DcpChunk& chunk = metadata.find("model.columns")->chunks[2];
  const fs::path path = folder / "d" / metadata.files[chunk.file];
  const std::string whole = read_text(path);
  const std::unique_ptr<WeightSource> source = open_weight_source(folder / "d");
  ASSERT_EQ(source->tensors()[0].name, "model.columns");
  size_t num_refused = 0;
  const auto try_one = [&](const std::string& bytes) {
    write_text(path, bytes);
    Bytes elements;
    try {
      source->read({0}, [&](size_t, int64_t, int64_t count, const void* piece) {
        const auto* begin = static_cast<const char*>(piece);
        elements.insert(elements.end(), begin, begin + static_cast<size_t>(count) * sizeof(int64_t));
      });
      EXPECT_EQ(elements, values(DType::I64, 12));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel) << error.what();
      ++num_refused;
    }
  };
  const size_t end = chunk.offset + chunk.length;
  for (size_t size = chunk.offset; size < end; size += 7) try_one(whole.substr(0, size));
  EXPECT_EQ(std::exchange(num_refused, 0), (chunk.length + 6) / 7);
  for (size_t place = chunk.offset; place < end; ++place) {
    std::string bytes = whole;
    bytes[place] = static_cast<char>(bytes[place] ^ 1 << place % 8);
    try_one(bytes);
  }
  EXPECT_GT(num_refused, 300u);
  EXPECT_LT(num_refused, chunk.length);  // the archive has padding
  num_refused = 0;
  try_one(whole);
  EXPECT_EQ(num_refused, 0u);
}

// Our own writer //

std::vector<TensorDeclaration> declarations() {
  std::vector<TensorDeclaration> all = {
      {"scalar", DType::F32, {}}, {"none", DType::BF16, {0, 4}}, {"a.b", DType::I64, {2, 3}}};
  for (const DTypeInfo& info : kDTypes) all.push_back({"type." + std::string(info.name), info.dtype, {3, 1, 2}});
  return all;
}

Bytes pattern(const TensorDeclaration& tensor) {
  Bytes bytes(std::accumulate(tensor.shape.begin(), tensor.shape.end(), item_size(tensor.dtype),
                              [](size_t all, int64_t size) { return all * static_cast<size_t>(size); }));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(tensor.name.size() + 37 * i);
  return bytes;
}

TEST(Dcp, WhatWeWriteIsRead) {
  const TemporaryFolder folder;
  std::map<std::string, Bytes> expected;
  DcpWriter writer(folder.path(), declarations(), "model.");
  for (const TensorDeclaration& tensor : declarations()) {
    const Bytes bytes = expected["model." + tensor.name] = pattern(tensor);
    const int64_t numel = static_cast<int64_t>(bytes.size() / item_size(tensor.dtype));
    const int64_t half = numel / 2;
    writer.write(tensor.name, 0, half, bytes.data());
    writer.write(tensor.name, half, numel - half, bytes.data() + static_cast<size_t>(half) * item_size(tensor.dtype));
  }
  EXPECT_FALSE(fs::exists(folder / ".metadata"));
  writer.commit();
  EXPECT_EQ(folder.num_files(), 2u);
  const std::unique_ptr<WeightSource> source = open_weight_source(folder.path());
  EXPECT_EQ(read_all(*source), expected);
  EXPECT_EQ(source->left_out(), std::vector<std::string>());
  const DcpMetadata metadata = read_dcp_metadata(folder.path());
  const InputFile file(folder / "__0_0.distcp", ErrorKind::kModel);
  for (const DcpTensor& tensor : metadata.tensors) {
    if (tensor.chunks.empty()) continue;
    const SavedTensor saved = find_saved_tensor(file, tensor.chunks[0].offset, tensor.chunks[0].length);
    EXPECT_EQ(saved.begin % 64, 0u) << tensor.name;
    EXPECT_TRUE(saved.crc32.has_value() || saved.bytes == 0) << tensor.name;
  }
}

// A small file would otherwise stand for as many tensors as its metadata name.
TEST(Dcp, BytesOfTwoChunksAreRefused) {
  const TemporaryFolder folder;
  DcpWriter writer(folder.path(), {{"a", DType::F32, {1}}, {"b", DType::F32, {1}}, {"c", DType::F32, {1}}});
  const float value = 1;
  for (const char* name : {"a", "b", "c"}) writer.write(name, 0, 1, &value);
  writer.commit();
  const auto as_pickled = [](uint64_t offset) {
    return std::string{'J', static_cast<char>(offset & 255), static_cast<char>(offset >> 8), '\0', '\0'};
  };
  const DcpMetadata metadata = read_dcp_metadata(folder.path());
  const DcpChunk &before = metadata.find("b")->chunks[0], &last = metadata.find("c")->chunks[0];
  ASSERT_TRUE(before.offset >= 256 && last.offset < 65536) << last.offset;
  std::string bytes = read_text(folder / ".metadata");
  const size_t place = bytes.find(as_pickled(last.offset));
  ASSERT_NE(place, std::string::npos);
  bytes.replace(place, 5, as_pickled(before.offset + before.length - 1));
  const Caught caught = catch_error([&] { parse_dcp_metadata(bytes, "file"); });
  EXPECT_EQ(caught.kind, ErrorKind::kModel);
  EXPECT_TRUE(caught.says("'c': got a chunk in bytes of '__0_0.distcp' that are also a chunk of 'b'")) << caught.text;
}

void begin_object(PickleWriter& pickle, const char* name, std::string_view module = kDcpMetadataModule) {
  using namespace pickle_opcode;
  pickle.global(module, name);
  pickle.opcode(kEmptyTuple);
  pickle.opcode(kNewObj);
  pickle.opcode(kEmptyDict);
  pickle.opcode(kMark);
}

void end_object(PickleWriter& pickle) {
  using namespace pickle_opcode;
  pickle.opcode(kSetItems);
  pickle.opcode(kBuild);
}

void put_field(PickleWriter& pickle, const char* name, std::initializer_list<int64_t> size) {
  pickle.text(name);
  pickle.integers(std::vector<int64_t>(size));
}

// Of the tensors "@A" and "@B" in so many chunks each.
std::string many_chunks(int64_t count) {
  using namespace pickle_opcode;
  PickleWriter pickle;
  begin_object(pickle, "Metadata");
  pickle.text("storage_data");
  pickle.opcode(kEmptyDict);
  for (int64_t i = 0; i < 2 * count; ++i) {
    begin_object(pickle, "MetadataIndex");
    pickle.text("fqn");
    pickle.text(i % 2 == 0 ? "@A" : "@B");
    put_field(pickle, "offset", {i / 2});
    end_object(pickle);
    begin_object(pickle, "_StorageInfo", "torch.distributed.checkpoint.filesystem");
    pickle.text("relative_path");
    pickle.text("file");
    pickle.text("offset");
    pickle.integer(i * 1000);
    pickle.text("length");
    pickle.integer(1000);
    end_object(pickle);
    pickle.opcode(kSetItem);
  }
  pickle.text("state_dict_metadata");
  pickle.opcode(kEmptyDict);
  for (const char* name : {"@A", "@B"}) {
    pickle.text(name);
    begin_object(pickle, "TensorStorageMetadata");
    pickle.text("properties");
    pickle.opcode(kMark);
    pickle.global("torch", "float32");
    pickle.opcode(kTuple);
    put_field(pickle, "size", {count});
    pickle.text("chunks");
    pickle.opcode(kEmptyList);
    for (int64_t i = 0; i < count; ++i) {
      begin_object(pickle, "ChunkStorageMetadata");
      put_field(pickle, "offsets", {i});
      put_field(pickle, "sizes", {1});
      end_object(pickle);
      pickle.opcode(kAppend);
    }
    end_object(pickle);
    pickle.opcode(kSetItem);
  }
  end_object(pickle);
  return pickle.finish();
}

// The same with long names, which stand there once and are pointed to from everywhere else.
std::string with_long_names(const std::string& pickle, uint32_t name_bytes) {
  using namespace pickle_opcode;
  const std::string start("X\2\0\0\0@", 6);
  std::string result;
  std::string seen;
  for (size_t at = 0; at < pickle.size();) {
    if (pickle.compare(at, start.size(), start) != 0) {
      result += pickle[at++];
      continue;
    }
    const char name = pickle[at + start.size()];
    const char place = static_cast<char>(name - 'A');
    if (seen.find(name) != std::string::npos) {
      result += {static_cast<char>(kBinGet), place};
    } else {
      result += static_cast<char>(kBinUnicode);
      result.append(reinterpret_cast<const char*>(&name_bytes), sizeof(name_bytes));
      result += std::string(name_bytes - 1, 'n') + name;
      result += {static_cast<char>(kBinPut), place};
      seen += name;
    }
    at += start.size() + 1;
  }
  return result;
}

// They would otherwise be compared, byte by byte, once for each chunk and more.
TEST(Dcp, NamesThatChunksShareAreReadOnce) {
  constexpr int64_t kChunks = 1 << 13;
  const std::string file = with_long_names(many_chunks(kChunks), 8 << 20);
  DcpMetadata metadata;
  EXPECT_LT(usage::processor_seconds([&] { metadata = parse_dcp_metadata(file, "file"); }), 30);  // 1, or minutes
  ASSERT_EQ(metadata.tensors.size(), 2u);
  for (const DcpTensor& tensor : metadata.tensors) {
    EXPECT_EQ(tensor.name.size(), size_t{8} << 20);
    ASSERT_EQ(tensor.chunks.size(), static_cast<size_t>(kChunks));
    EXPECT_EQ(tensor.chunks[5].offset, 1000u * (10 + (tensor.name.back() == 'A' ? 0 : 1)));
  }
}

TEST(Dcp, WriterRefusesMisuse) {
  const TemporaryFolder folder;
  const auto says = [](const Caught& caught, const char* part) {
    return caught.kind == ErrorKind::kUsage && caught.says(part);
  };
  const float value[4] = {};
  {
    DcpWriter writer(folder.path(), {{"t", DType::F32, {4}}});
    EXPECT_TRUE(says(catch_error([&] { writer.write("u", 0, 4, value); }), "undeclared"));
    EXPECT_TRUE(says(catch_error([&] { writer.write("t", 1, 3, value); }), "expected those from 0"));
    EXPECT_TRUE(says(catch_error([&] { writer.write("t", 0, 5, value); }), "at most 4"));
    writer.write("t", 0, 3, value);
    EXPECT_TRUE(says(catch_error([&] { writer.write("t", 0, 3, value); }), "expected those from 3"));
    EXPECT_TRUE(says(catch_error([&] { writer.commit(); }), "3 elements written, expected 4"));
  }
  EXPECT_EQ(folder.num_files(), 0u);
  const auto declare_error = [&](const std::vector<TensorDeclaration>& tensors) {
    return catch_error([&] { DcpWriter(folder.path(), tensors); });
  };
  EXPECT_TRUE(says(declare_error({{"t", DType::F32, {4}}, {"t", DType::F32, {4}}}), "twice"));
  EXPECT_TRUE(says(declare_error({{"t", DType::F32, {-1}}}), "cannot be stored"));
  EXPECT_TRUE(says(declare_error({{"t", DType::F32, {int64_t{1} << 61}}}), "cannot be stored"));
  EXPECT_TRUE(says(declare_error({{"t", DType::U8, std::vector<int64_t>(9, 1)}}), "cannot be stored"));
}

}  // namespace
}  // namespace fsdp::io
