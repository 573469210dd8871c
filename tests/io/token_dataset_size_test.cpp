// A data set of a terabyte costs no more memory, descriptors or time to open than one of its number of shards.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <random>

#include "io/base/pooled_file.h"
#include "io/tokens/token_shard_header.h"
#include "io/tokens/token_shards.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShards = 1024;
constexpr int64_t kDocuments = 100'000;        // per shard
constexpr int64_t kShardTokens = 500'000'000;  // of two bytes: 1 GB per shard
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kMostMemory = int64_t{128} << 20;  // with what surrounds each allocation, and what is freed late
#else
constexpr int64_t kMostMemory = int64_t{64} << 20;
#endif

// Lengths between 2 and 9998 tokens.
int64_t start_of(int64_t document) { return 5000 * document + document * document % 4999; }

void write_file(const fs::path& path, TokenShardHeader header, const std::vector<uint64_t>& items, uint64_t size) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  file.write(reinterpret_cast<const char*>(items.data()), static_cast<std::streamsize>(items.size() * 8));
  file.close();
  fs::resize_file(path, size);  // the rest is a hole that reads as zeros
}

// Shards of zeros; all have the same index.
void write_sparse_dataset(const TemporaryFolder& folder) {
  TokenShardHeader header{.magic = kTokensMagic,
                          .version = kTokenShardVersion,
                          .item_bytes = 2,
                          .num_tokens = kShardTokens,
                          .num_documents = kDocuments,
                          .zero = {}};
  TokenShardHeader index_header = header;
  index_header.magic = kIndexMagic;
  index_header.item_bytes = kIndexItemBytes;
  std::vector<uint64_t> starts;
  for (int64_t document = 0; document < kDocuments; ++document) {
    starts.push_back(static_cast<uint64_t>(start_of(document)));
  }
  DatasetManifest manifest{.tokenizer = "test", .vocab_size = 256, .eos_id = 0, .splits = {{"train", {}}}};
  for (int64_t shard = 0; shard < kShards; ++shard) {
    const std::string name = "train-" + std::to_string(shard);
    write_file(folder / (name + ".bin"), header, {}, 64 + 2 * kShardTokens);
    if (shard == 0) {
      write_file(folder / (name + ".idx"), index_header, starts, 64 + 8 * kDocuments);
    } else {
      fs::create_hard_link(folder / "train-0.idx", folder / (name + ".idx"));
    }
    manifest.splits["train"].push_back({name, kShardTokens, kDocuments, "", ""});
  }
  write_dataset_manifest(folder.path(), manifest);
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t open_descriptors() { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); }

// The slow way.
std::vector<int64_t> expected_starts(int64_t first, int64_t n) {
  std::vector<int64_t> starts;
  for (int64_t shard = first / kShardTokens; shard * kShardTokens < first + n; ++shard) {
    const int64_t low = std::max<int64_t>(0, (first - shard * kShardTokens) / 5000 - 2);
    for (int64_t document = low; document < kDocuments; ++document) {
      const int64_t start = shard * kShardTokens + start_of(document);
      if (start >= first + n) break;
      if (start >= first) starts.push_back(start - first);
    }
  }
  return starts;
}

TEST(TokenDatasetSize, ATerabyteOpensAtOnceAndIsReadInPages) {
  const TemporaryFolder folder;
  write_sparse_dataset(folder);
  const int64_t memory = resident_bytes();
  const int64_t descriptors = open_descriptors();
  const auto begin = std::chrono::steady_clock::now();
  const TokenDataset dataset = TokenDataset::open(folder.path(), "train");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(dataset.num_tokens(), kShards * kShardTokens);
  EXPECT_LT(seconds, 0.5);

  constexpr int64_t kLength = 4097;
  std::mt19937_64 random(17);
  std::vector<int32_t> tokens(kLength);
  for (int i = 0; i < 2000; ++i) {
    // Every third one crosses from one shard to the next.
    const auto draw = static_cast<int64_t>(random() % static_cast<uint64_t>(dataset.num_tokens() - kLength));
    const int64_t first = i % 3 == 0 ? std::max<int64_t>(0, draw / kShardTokens * kShardTokens - 2000) : draw;
    ASSERT_EQ(dataset.document_starts(first, kLength), expected_starts(first, kLength)) << first;
    tokens.assign(kLength, -1);
    dataset.read(first, kLength, tokens.data());
    ASSERT_EQ(tokens, std::vector<int32_t>(kLength, 0)) << first;
  }
  EXPECT_LT(resident_bytes() - memory, kMostMemory);
  EXPECT_LE(open_descriptors() - descriptors, static_cast<int64_t>(PooledFile::kMostOpen) + 1);
}

// Where lengths differ so much that the guess of the search is wrong by far.
TEST(TokenDatasetSize, IndexOfVeryUnequalDocuments) {
  const TemporaryFolder folder;
  TokenShardWriter writer(folder / "train-0", 1);
  std::vector<int64_t> starts;
  for (int i = 0; i < 4000; ++i) {
    starts.push_back(writer.num_tokens());
    writer.add_document(std::vector<int32_t>(i == 7 || i == 3500 ? 300'000 : 1, 1));
  }
  DatasetManifest manifest{.tokenizer = "test", .vocab_size = 256, .eos_id = 0, .splits = {}};
  manifest.splits["train"] = {writer.commit()};
  write_dataset_manifest(folder.path(), manifest);
  const TokenDataset dataset = TokenDataset::open(folder.path(), "train");
  for (size_t i = 0; i < starts.size(); ++i) {
    ASSERT_EQ(dataset.document_starts(starts[i], 1), std::vector<int64_t>{0}) << i;
  }
  EXPECT_TRUE(dataset.document_starts(starts[7] + 1, 1000).empty());
  EXPECT_EQ(dataset.document_starts(starts[3500] + 1, 300'001), (std::vector<int64_t>{299'999, 300'000}));
}

TEST(TokenDatasetSize, AShardThatChangesWhileItIsClosedIsAnError) {
  const TemporaryFolder folder;
  DatasetManifest manifest{.tokenizer = "test", .vocab_size = 256, .eos_id = 0, .splits = {}};
  const auto num_shards = static_cast<int>(PooledFile::kMostOpen / 2 + 8);  // two files each
  for (int shard = 0; shard < num_shards; ++shard) {
    TokenShardWriter writer(folder / ("train-" + std::to_string(shard)), 1);
    writer.add_document(std::vector<int32_t>{shard, shard});
    manifest.splits["train"].push_back(writer.commit());
  }
  write_dataset_manifest(folder.path(), manifest);
  const TokenDataset dataset = TokenDataset::open(folder.path(), "train");
  std::vector<int32_t> tokens(static_cast<size_t>(dataset.num_tokens()));
  dataset.read(0, dataset.num_tokens(), tokens.data());
  for (size_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(tokens[i], static_cast<int32_t>(i / 2));
  EXPECT_EQ(dataset.document_starts(0, dataset.num_tokens()).size(), static_cast<size_t>(num_shards));
  fs::resize_file(folder / "train-0.bin", 65);  // closed by now
  EXPECT_TRUE(catch_error([&] { dataset.read(0, 2, tokens.data()); }).says("got 65 bytes, expected 66 as before"));
}

}  // namespace
}  // namespace fsdp::io
