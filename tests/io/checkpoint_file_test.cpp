#include "io/checkpoint/checkpoint_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <atomic>

#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "io/base/aligned_buffer.h"
#include "io/safetensors/safetensors.h"
#include "tests/io/checkpoint_sample.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

std::vector<uint8_t> random_bytes(size_t num_bytes, uint64_t seed) {
  std::vector<uint8_t> bytes(num_bytes);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 8 <= num_bytes; i += 8) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + i, &value, 8);
  }
  for (size_t i = num_bytes / 8 * 8; i < num_bytes; ++i) bytes[i] = static_cast<uint8_t>(random());
  return bytes;
}

// One file of U8 ranges, and what it was written from.
struct Written {
  FileImage image;
  std::vector<std::vector<uint8_t>> data;
  CheckpointManifest manifest;
};

std::vector<const void*> pointers(const std::vector<std::vector<uint8_t>>& data) {
  std::vector<const void*> sources;
  for (const auto& bytes : data) sources.push_back(bytes.data());
  return sources;
}

Written write_ranges(const std::filesystem::path& folder, const std::vector<size_t>& sizes, int num_threads) {
  std::vector<FlatRange> ranges;
  std::vector<std::vector<uint8_t>> data;
  for (size_t size : sizes) {
    const auto begin = static_cast<int64_t>(ranges.size() * 100);
    ranges.push_back({"t" + std::to_string(ranges.size()), DType::U8, begin, begin + static_cast<int64_t>(size)});
    data.push_back(random_bytes(size, ranges.size()));
  }
  Written written{FileImage(ranges), std::move(data), {}};
  written.manifest.files.push_back(
      write_image(system_files(), folder / "a.safetensors", written.image, pointers(written.data), num_threads));
  return written;
}

void expect_read_back(const std::filesystem::path& folder, const Written& written, int num_threads) {
  std::vector<std::vector<uint8_t>> out;
  std::vector<ReadRange> ranges;
  for (size_t i = 0; i < written.data.size(); ++i) out.emplace_back(written.data[i].size());
  for (size_t i = out.size(); i-- > 0;) ranges.push_back({0, written.image.offset(i), out[i].size(), out[i].data()});
  read_ranges(folder, written.manifest, ranges, num_threads);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(out[i] == written.data[i]) << "range " << i;
}

// Changes one byte of a file in place.
void poke(const std::filesystem::path& path, uint64_t offset, char value) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset)).put(value);
}

TEST(FileImage, LayoutIsAsDocumented) {
  const FileImage image(
      {{"w", DType::F32, 2, 5}, {"none", DType::F32, 7, 7}, {"x", DType::U8, 0, 65}, {"y", DType::BF16, 0, 1}});
  EXPECT_EQ(image.offset(0), 4096u);
  EXPECT_EQ(image.offset(1), 0u);
  EXPECT_EQ(image.offset(2), 4096u + 64);
  EXPECT_EQ(image.offset(3), 4096u + 192);
  EXPECT_EQ(image.bytes(), 4096u + 194);
  std::vector<char> bytes(image.bytes());
  const float w[] = {1, 2, 3};
  const std::string x(65, 'x');
  const std::vector<const void*> sources = {w, nullptr, x.data(), "yy"};
  image.compose(sources, 0, image.bytes(), bytes.data());
  const std::string_view header =
      R"({"w[2:5]":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"pad/0":{"dtype":"U8","shape":[52],"data_offsets":[12,64]},)"
      R"("x[0:65]":{"dtype":"U8","shape":[65],"data_offsets":[64,129]},"pad/1":{"dtype":"U8","shape":[63],"data_offsets":[129,192]},)"
      R"("y[0:1]":{"dtype":"BF16","shape":[1],"data_offsets":[192,194]}} )";
  EXPECT_EQ(std::string_view(bytes.data() + 8, header.size()), header);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length, 4096u - 8);
  EXPECT_EQ(std::string_view(bytes.data() + 4096, sizeof(w)),
            std::string_view(reinterpret_cast<const char*>(w), sizeof(w)));
  EXPECT_EQ(std::string_view(bytes.data() + 4096 + 12, 52), std::string(52, '\0'));
  EXPECT_EQ(std::string_view(bytes.data() + 4096 + 192, 2), "yy");
}

TEST(FileImage, AnyPieceIsThatPieceOfTheWhole) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    std::vector<FlatRange> ranges;
    std::vector<std::vector<uint8_t>> data;
    const size_t num_ranges = random() % 6;
    for (size_t i = 0; i < num_ranges; ++i) {
      const size_t size = random() % 3 == 0 ? random() % 3 : random() % 300;
      ranges.push_back({"t" + std::to_string(i), DType::U8, 0, static_cast<int64_t>(size)});
      data.push_back(random_bytes(size, random()));
    }
    const FileImage image(ranges);
    const std::vector<const void*> sources = pointers(data);
    std::vector<char> whole(image.bytes());
    image.compose(sources, 0, image.bytes(), whole.data());
    for (int piece = 0; piece < 50; ++piece) {
      uint64_t begin = (piece % 2 == 0 ? 4000 : 0) + random() % 4000;
      begin = std::min(begin, image.bytes());
      const uint64_t end = begin + random() % (image.bytes() - begin + 1);
      std::vector<char> bytes(end - begin + 1, 'e');
      image.compose(sources, begin, end, bytes.data());
      ASSERT_EQ(std::memcmp(bytes.data(), whole.data() + begin, end - begin), 0) << begin << " " << end;
      ASSERT_EQ(bytes.back(), 'e');
    }
  }
}

TEST(FileImage, MistakesAreNamed) {
  const auto refused = [](std::vector<FlatRange> ranges) {
    const Caught error = catch_error([&] { FileImage{ranges}; });
    EXPECT_EQ(error.kind, ErrorKind::kUsage);
    return error;
  };
  EXPECT_TRUE(refused({{"a", DType::U8, -1, 1}}).says("0 <= begin <= end"));
  EXPECT_TRUE(refused({{"a", DType::U8, 3, 2}}).says("range 'a[3:2]'"));
  EXPECT_TRUE(refused({{"a", DType::U8, INT64_MIN, INT64_MAX}}).says("0 <= begin"));
  EXPECT_TRUE(refused({{"a", DType::F64, 0, INT64_MAX}}).says("0 <= begin <= end"));
  EXPECT_TRUE(refused({{"a", DType::U8, 0, INT64_MAX}}).says("2^62"));
  EXPECT_TRUE(refused({{"a", DType::U8, 0, 1}, {"a", DType::F32, 0, 1}}).says("got it twice"));
  EXPECT_TRUE(refused({{"\xff", DType::U8, 0, 1}}).says("UTF-8"));
  const FileImage image({{"a", DType::U8, 0, 1}});
  char out[8];
  EXPECT_TRUE(catch_error([&] { image.compose({}, 0, 1, out); }).says("got 0 sources"));
}

TEST(CheckpointFile, RoundTripOfManySizes) {
  const size_t chunk = kChunkBytes;
  const std::vector<size_t> cases[] = {{},
                                       {0},
                                       {1},
                                       {0, 7, 0, 4096, 12345, 0},
                                       {chunk - 4096},
                                       {chunk - 4097},
                                       {chunk - 4095},
                                       {chunk - 4096, 1},
                                       {100, 2 * chunk + 1234567, 3}};
  for (const auto& sizes : cases) {
    for (int num_threads : {0, 3}) {
      if (num_threads == 0 && sizes.size() == 1 && sizes[0] >= chunk - 4096) continue;  // the disk is slow
      const TemporaryFolder folder;
      const Written written = write_ranges(folder.path(), sizes, num_threads);
      const CheckpointFile& file = written.manifest.files[0];
      EXPECT_EQ(file.name, "a.safetensors");
      EXPECT_EQ(file.bytes, std::filesystem::file_size(folder / "a.safetensors"));
      EXPECT_EQ(file.chunks.size(), (file.bytes + chunk - 1) / chunk);
      std::atomic<uint64_t> checked = 0;
      verify_chunks(folder.path(), written.manifest, 0, 1, num_threads, [&](uint64_t more) { checked += more; });
      uint64_t bytes = 0;
      for (const CheckpointFile& file : written.manifest.files) bytes += file.bytes;
      EXPECT_EQ(checked, bytes);
      expect_read_back(folder.path(), written, num_threads);
      const SafetensorsFile tensors = SafetensorsFile::open(folder / "a.safetensors");
      for (size_t i = 0; i < sizes.size(); ++i) {
        const TensorEntry* entry = tensors.find(written.image.ranges()[i].entry_name());
        ASSERT_EQ(entry != nullptr, sizes[i] > 0);
        if (entry == nullptr) continue;
        std::vector<uint8_t> bytes(sizes[i]);
        tensors.read(*entry, 0, entry->numel(), bytes.data());
        EXPECT_TRUE(bytes == written.data[i]);
      }
    }
  }
}

TEST(CheckpointFile, ComposedAndStreamingWritersGiveEqualBytes) {
  for (const std::vector<size_t>& sizes : {std::vector<size_t>{5, 300, 0, 77}, {2 * kChunkBytes + 4321, 99}}) {
    const TemporaryFolder folder;
    const Written written = write_ranges(folder.path(), sizes, 2);
    const AlignedBuffer composed(written.image.bytes());
    written.image.compose(pointers(written.data), 0, written.image.bytes(), composed.data());
    const CheckpointFile other =
        write_image(system_files(), folder / "b.safetensors", written.image, composed.data(), 3);
    EXPECT_EQ(other.bytes, written.manifest.files[0].bytes);
    EXPECT_EQ(other.chunks, written.manifest.files[0].chunks);
    EXPECT_TRUE(read_text(folder / "a.safetensors") == read_text(folder / "b.safetensors"));
  }
}

TEST(CheckpointFile, RandomReadsOverlapAsTheyLike) {
  const TemporaryFolder folder;
  const Written written = write_ranges(folder.path(), {2 * kChunkBytes + 99, 1000, kChunkBytes / 2}, 2);
  std::mt19937_64 random(3);
  std::vector<std::vector<uint8_t>> out(60);
  std::vector<ReadRange> ranges;
  std::vector<const uint8_t*> expected;
  for (auto& bytes : out) {
    const size_t i = random() % written.data.size();
    const uint64_t begin = random() % written.data[i].size();
    const uint64_t size = random() % (written.data[i].size() - begin);
    bytes.resize(1 + (random() % 3 == 0 ? std::min<uint64_t>(size, 100) : size));
    ranges.push_back({0, written.image.offset(i) + begin, bytes.size(), bytes.data()});
    expected.push_back(written.data[i].data() + begin);
  }
  read_ranges(folder.path(), written.manifest, ranges, 3);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::memcmp(out[i].data(), expected[i], out[i].size()), 0);
}

TEST(CheckpointFile, RangesOutsideAFileAreTheCallersMistake) {
  const TemporaryFolder folder;
  const Written written = write_ranges(folder.path(), {100}, 1);
  const uint64_t size = written.image.bytes();
  char out[256];
  for (const ReadRange& range : {ReadRange{1, 0, 1, out},
                                 {0, size, 1, out},
                                 {0, size - 1, 2, out},
                                 {0, UINT64_MAX, 2, out},
                                 {0, 1, UINT64_MAX, out}}) {
    EXPECT_EQ(catch_error([&] { read_ranges(folder.path(), written.manifest, {range}, 1); }).kind, ErrorKind::kUsage);
  }
  read_ranges(folder.path(), written.manifest, {{0, size, 0, nullptr}}, 1);
  for (const auto& [part, parts] : {std::pair{0, 0}, {-1, 2}, {2, 2}}) {
    EXPECT_EQ(catch_error([&] { verify_chunks(folder.path(), written.manifest, part, parts, 1); }).kind,
              ErrorKind::kUsage);
  }
}

TEST(CheckpointFile, EveryFlippedBitOfASmallFileIsFound) {
  const TemporaryFolder folder;
  const Written written = write_ranges(folder.path(), {150, 3}, 1);
  const std::string good = read_text(folder / "a.safetensors");
  for (size_t i = 0; i < good.size(); i += i < 200 || i >= 4096 ? 1 : 61) {
    poke(folder / "a.safetensors", i, static_cast<char>(good[i] ^ (1 << i % 8)));
    const Caught error = catch_error([&] { verify_chunks(folder.path(), written.manifest, 0, 1, 1); });
    ASSERT_EQ(error.kind, ErrorKind::kModel) << i;
    ASSERT_TRUE(error.says("a.safetensors'") && error.says("of chunk 0 (bytes 0 to 4291)") && error.is_one_line())
        << error.text;
    ASSERT_TRUE(error.says("Choose another checkpoint (resume=auto passes over it).")) << error.text;
    poke(folder / "a.safetensors", i, good[i]);
  }
  verify_chunks(folder.path(), written.manifest, 0, 1, 1);
}

TEST(CheckpointFile, DamageIsNamedByChunkAndFoundOnlyWhereRead) {
  const TemporaryFolder folder;
  const Written written = write_ranges(folder.path(), {3 * kChunkBytes}, 2);
  poke(folder / "a.safetensors", kChunkBytes + 5, static_cast<char>(~written.data[0][kChunkBytes + 5 - 4096]));
  std::vector<uint8_t> out(100);
  const auto read_at = [&](uint64_t offset) {
    return catch_error([&] { read_ranges(folder.path(), written.manifest, {{0, offset, 100, out.data()}}, 2); });
  };
  EXPECT_EQ(read_at(kChunkBytes - 100).text, "no error");
  EXPECT_EQ(read_at(2 * kChunkBytes).text, "no error");
  const std::string_view words = "of chunk 1 (bytes 16777216 to 33554432), expected ";
  EXPECT_TRUE(read_at(kChunkBytes - 99).says(words)) << read_at(kChunkBytes - 99).text;
  EXPECT_TRUE(read_at(2 * kChunkBytes - 1).says(words));
  int found = 0;
  for (int part = 0; part < 3; ++part) {
    found += catch_error([&] { verify_chunks(folder.path(), written.manifest, part, 3, 2); }).says(words) ? 1 : 0;
  }
  EXPECT_EQ(found, 1);
}

TEST(CheckpointFile, MissingShortAndLongFilesAreNamed) {
  const TemporaryFolder folder;
  const Written written = write_ranges(folder.path(), {1000}, 1);
  char out[4];
  const auto both = [&](std::string_view words) {
    const Caught errors[] = {catch_error([&] { verify_chunks(folder.path(), written.manifest, 0, 1, 1); }),
                             catch_error([&] {
                               read_ranges(folder.path(), written.manifest, {{0, 0, 4, out}}, 1);
                             })};
    for (const Caught& error : errors) {
      EXPECT_TRUE(error.kind == ErrorKind::kModel && error.says(words) && error.is_one_line()) << error.text;
      EXPECT_TRUE(error.says("a.safetensors'") && error.says("Choose another checkpoint")) << error.text;
    }
  };
  for (uint64_t size : {0, 100, 4096, 5095}) {
    std::filesystem::resize_file(folder / "a.safetensors", size);
    both("got " + std::to_string(size) + " bytes, expected 5096");
  }
  std::filesystem::resize_file(folder / "a.safetensors", 5097);
  both("got 5097 bytes, expected 5096");
  std::filesystem::remove(folder / "a.safetensors");
  both("got no such file");
  std::filesystem::create_directory(folder / "a.safetensors");
  both("got a folder");
}

// What a writer's threads do, and a failure at the N-th write.
class WatchedFiles : public FileOps {
 public:
  struct File : OutputFile {
    explicit File(WatchedFiles& owner) : owner(owner) {}
    ~File() override { owner.is_open = false; }
    void write_at(uint64_t, const void* data, size_t num_bytes) override {
      const std::lock_guard lock(owner.mutex);
      sigset_t mask;
      ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
      owner.blocked = owner.blocked && sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGINT) == 1;
      owner.aligned = owner.aligned && reinterpret_cast<uintptr_t>(data) % kDirectAlignment == 0;
      owner.threads.insert(std::this_thread::get_id());
      owner.written += num_bytes;
      if (++owner.num_writes == owner.fail_at) throw system_error("write", "x", 28, "room");
    }
    void sync() override { owner.synced = true; }
    WatchedFiles& owner;
  };
  void make_folder(const std::filesystem::path&) override {}
  std::unique_ptr<OutputFile> create(const std::filesystem::path&, WriteMode mode) override {
    EXPECT_EQ(mode, WriteMode::kDirect);
    is_open = true;
    return std::make_unique<File>(*this);
  }
  void rename(const std::filesystem::path&, const std::filesystem::path&) override {}
  bool exchange(const std::filesystem::path&, const std::filesystem::path&) override { return false; }
  void remove_all(const std::filesystem::path&) override {}
  void sync_folder(const std::filesystem::path&) override {}

  std::mutex mutex;
  std::set<std::thread::id> threads;
  uint64_t written = 0;
  int num_writes = 0;
  int fail_at = -1;
  bool blocked = true;
  bool aligned = true;
  bool synced = false;
  bool is_open = false;
};

TEST(CheckpointFile, WorkersBlockSignalsAndTheCallerKeepsItsMask) {
  const FileImage image({{"a", DType::U8, 0, static_cast<int64_t>(4 * kChunkBytes + 1)}});
  const std::vector<uint8_t> data(4 * kChunkBytes + 1);
  WatchedFiles files;
  write_image(files, "x", image, std::vector<const void*>{data.data()}, 2);
  EXPECT_TRUE(files.blocked && files.aligned && files.synced && !files.is_open);
  EXPECT_EQ(files.threads.count(std::this_thread::get_id()), 0u);
  EXPECT_EQ(files.written, image.bytes());
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 0);
}

TEST(CheckpointFile, TheFirstFailureStopsAllAndClosesTheFile) {
  const FileImage image({{"a", DType::U8, 0, static_cast<int64_t>(6 * kChunkBytes)}});
  const std::vector<uint8_t> data(6 * kChunkBytes);
  for (int num_threads : {1, 2}) {
    WatchedFiles files;
    files.fail_at = 2;
    const Caught error =
        catch_error([&] { write_image(files, "x", image, std::vector<const void*>{data.data()}, num_threads); });
    EXPECT_EQ(error.kind, ErrorKind::kFileSystem);
    EXPECT_TRUE(error.says("No space left on device")) << error.text;
    EXPECT_FALSE(files.synced || files.is_open);
    if (num_threads == 1) {
      EXPECT_EQ(files.num_writes, 2);
    }
  }
}

TEST(SystemFiles, PiecesOfAnyAlignmentMakeTheFile) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> data = random_bytes(100000, 1);
  const AlignedBuffer aligned(data.size());
  std::memcpy(aligned.data(), data.data(), data.size());
  for (WriteMode mode : {WriteMode::kCached, WriteMode::kDirect}) {
    const std::string name = mode == WriteMode::kCached ? "cached" : "direct";
    const auto file = system_files().create(folder / name, mode);
    file->reserve(data.size());
    const size_t cuts[] = {0, 8192, 8193, 12288, 16384, 40961, 45056, 99999, 100000};
    for (size_t i = std::size(cuts) - 1; i-- > 0;)
      file->write_at(cuts[i], aligned.data() + cuts[i], cuts[i + 1] - cuts[i]);
    file->write_at(500, aligned.data() + 500, 0);
    file->sync();
    EXPECT_EQ(read_text(folder / name), std::string(data.begin(), data.end())) << name;
  }
}

TEST(SystemFiles, RefusalsNameThePath) {
  const TemporaryFolder folder;
  FileOps& files = system_files();
  write_text(folder / "there", "old");
  std::filesystem::create_symlink(folder / "there", folder / "link");
  for (const char* name : {"there", "link", "none/a"}) {
    for (WriteMode mode : {WriteMode::kCached, WriteMode::kDirect}) {
      const Caught error = catch_error([&] { files.create(folder / name, mode); });
      EXPECT_TRUE(error.kind == ErrorKind::kFileSystem && error.says(name)) << error.text;
    }
  }
  EXPECT_EQ(read_text(folder / "there"), "old");
  EXPECT_TRUE(catch_error([&] { files.make_folder(folder / "there"); }).says("File exists"));
  EXPECT_TRUE(catch_error([&] { files.make_folder(folder / "a/b"); }).says("No such file"));
  EXPECT_TRUE(catch_error([&] { files.rename(folder / "x", folder / "y"); }).says("No such file"));
  EXPECT_TRUE(catch_error([&] { files.exchange(folder / "x", folder / "there"); }).says("No such file"));
  EXPECT_TRUE(catch_error([&] { files.sync_folder(folder / "x"); }).says("No such file"));
  files.remove_all(folder / "none");
  files.make_folder(folder / "sub");
  write_text(folder / "sub/a", "a");
  ASSERT_TRUE(files.exchange(folder / "sub", folder / "there"));
  EXPECT_EQ(read_text(folder / "sub"), "old");
  EXPECT_EQ(read_text(folder / "there/a"), "a");
  files.remove_all(folder / "there");
  EXPECT_FALSE(std::filesystem::exists(folder / "there"));
}

}  // namespace
}  // namespace fsdp::io
