#include "io/tokens/token_shards.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "io/base/hash.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

using Tokens = std::vector<int32_t>;
using Documents = std::vector<Tokens>;

constexpr int64_t kVocab = 256;

// Writes shards train-0, train-1, ... and the manifest.
void write_dataset(const std::filesystem::path& folder, const std::vector<Documents>& shards, int bytes_per_token) {
  DatasetManifest manifest{.tokenizer = "test", .vocab_size = kVocab, .eos_id = 0, .splits = {{"train", {}}}};
  for (size_t i = 0; i < shards.size(); ++i) {
    TokenShardWriter writer(folder / ("train-" + std::to_string(i)), bytes_per_token);
    for (const Tokens& document : shards[i]) writer.add_document(document);
    manifest.splits["train"].push_back(writer.commit());
  }
  write_dataset_manifest(folder, manifest);
}

Tokens read(const TokenDataset& dataset, int64_t first, int64_t n) {
  Tokens out(static_cast<size_t>(n));
  dataset.read(first, n, out.data());
  return out;
}

TEST(TokenShards, RoundTripAcrossShards) {
  for (int bytes_per_token : {1, 2, 4}) {
    const TemporaryFolder folder;
    write_dataset(folder.path(), {{{1, 2, 3}, {4}}, {}, {{5, 6}, {7, 8, 255}}}, bytes_per_token);
    const TokenDataset dataset = TokenDataset::open(folder.path(), "train");
    EXPECT_EQ(dataset.num_tokens(), 9);
    EXPECT_EQ(dataset.num_documents(), 4);
    EXPECT_EQ(dataset.vocab_size(), kVocab);
    EXPECT_EQ(dataset.eos_id(), 0);
    EXPECT_EQ(dataset.tokenizer(), "test");
    EXPECT_EQ(read(dataset, 0, 9), (Tokens{1, 2, 3, 4, 5, 6, 7, 8, 255}));
    EXPECT_EQ(read(dataset, 3, 3), (Tokens{4, 5, 6}));
    EXPECT_EQ(read(dataset, 9, 0), Tokens{});
    EXPECT_EQ(dataset.document_starts(0, 9), (std::vector<int64_t>{0, 3, 4, 6}));
    EXPECT_EQ(dataset.document_starts(1, 5), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(dataset.document_starts(1, 2), std::vector<int64_t>{});
    EXPECT_EQ(dataset.document_starts(4, 1), std::vector<int64_t>{0});
    EXPECT_EQ(dataset.document_starts(9, 0), std::vector<int64_t>{});
    dataset.verify_hashes();
    EXPECT_EQ(folder.num_files(), 7u);
  }
}

TEST(TokenShards, BytesAreAsDocumented) {
  const TemporaryFolder folder;
  write_dataset(folder.path(), {{{1, 2}, {3}}}, 2);
  std::string header("FSDPTOKS\1\0\0\0\2\0\0\0\3\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 32);
  header.append(32, '\0');
  EXPECT_EQ(read_text(folder / "train-0.bin"), header + std::string("\1\0\2\0\3\0", 6));
  std::memcpy(header.data() + 4, "TIDX", 4);
  header[12] = 8;
  EXPECT_EQ(read_text(folder / "train-0.idx"), header + std::string("\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 16));
  const DatasetManifest manifest = read_dataset_manifest(folder.path());
  EXPECT_EQ(manifest.splits.at("train")[0].bin_hash, hash_text(hash_bytes(read_text(folder / "train-0.bin"))));
}

TEST(TokenShards, LongShardsAreReadInPieces) {
  const TemporaryFolder folder;
  Documents documents;
  for (int i = 0; i < 1500; ++i) documents.push_back(Tokens(static_cast<size_t>(1 + i % 60), i % 256));
  Tokens all;
  std::vector<int64_t> starts;
  for (const Tokens& document : documents) {
    starts.push_back(static_cast<int64_t>(all.size()));
    all.insert(all.end(), document.begin(), document.end());
  }
  write_dataset(folder.path(), {documents}, 2);
  const TokenDataset dataset = TokenDataset::open(folder.path(), "train");
  EXPECT_EQ(read(dataset, 0, dataset.num_tokens()), all);
  EXPECT_EQ(dataset.document_starts(0, dataset.num_tokens()), starts);
}

TEST(TokenShards, RangesAndSplitsAreChecked) {
  const TemporaryFolder folder;
  write_dataset(folder.path(), {{{1, 2, 3}}}, 1);
  const TokenDataset dataset = TokenDataset::open(folder.path(), "train");
  const std::pair<int64_t, int64_t> ranges[] = {{-1, 1}, {0, 4}, {4, 0}, {1, INT64_MAX}, {0, -1}};
  for (const auto& [first, n] : ranges) {
    EXPECT_EQ(catch_error([&] { dataset.read(first, n, nullptr); }).kind, ErrorKind::kUsage);
    EXPECT_TRUE(catch_error([&] { dataset.document_starts(first, n); }).says("inside the 3 tokens"));
  }
  EXPECT_TRUE(catch_error([&] { TokenDataset::open(folder.path(), "test"); }).says("expected one of: 'train'"));
  EXPECT_TRUE(catch_error([&] { TokenDataset::open(folder / "none", "train"); }).says("no such file"));
}

TEST(TokenShards, WriterMistakesAreNamed) {
  const TemporaryFolder folder;
  EXPECT_TRUE(catch_error([&] { TokenShardWriter(folder / "a", 3); }).says("expected 1, 2 or 4"));
  TokenShardWriter writer(folder / "a", 1);
  EXPECT_TRUE(catch_error([&] { writer.add_document({}); }).says("empty document"));
  EXPECT_TRUE(catch_error([&] { writer.add_document(Tokens{1, 256}); }).says("got token id 256"));
  EXPECT_TRUE(catch_error([&] { writer.add_document(Tokens{-1}); }).says("got token id -1"));
  DatasetManifest manifest{.tokenizer = "t", .vocab_size = 5, .eos_id = 5, .splits = {}};
  EXPECT_EQ(catch_error([&] { write_dataset_manifest(folder.path(), manifest); }).kind, ErrorKind::kUsage);
}

TEST(TokenShards, NothingAppearsWithoutCommit) {
  const TemporaryFolder folder;
  {
    TokenShardWriter writer(folder / "a", 1);
    writer.add_document(Tokens{1});
  }
  EXPECT_EQ(folder.num_files(), 0u);
}

// Two shards, of which the second knows answers from the rest.
void write_masked_dataset(const std::filesystem::path& folder) {
  TokenShardWriter plain(folder / "train-0", 2);
  plain.add_document(Tokens{1, 2, 3});
  TokenShardWriter masked(folder / "train-1", 2, AnswerMask::kPerToken);
  masked.add_document(Tokens{4, 5}, std::vector<uint8_t>{0, 1});
  masked.add_document(Tokens{6, 7, 8}, std::vector<uint8_t>{0, 0, 1});
  DatasetManifest manifest{.tokenizer = "test", .vocab_size = kVocab, .eos_id = 0, .splits = {}};
  manifest.splits["train"] = {plain.commit(), masked.commit()};
  manifest.tokenizer_hash = "0123456789abcdef";
  write_dataset_manifest(folder, manifest);
}

TEST(TokenShards, MasksTellAnswersFromTheRest) {
  const TemporaryFolder folder;
  write_masked_dataset(folder.path());
  const TokenDataset dataset = TokenDataset::open(folder.path(), "train");
  EXPECT_TRUE(dataset.has_mask());
  EXPECT_EQ(dataset.num_answers(), 5);
  EXPECT_EQ(dataset.tokenizer_hash(), "0123456789abcdef");
  std::vector<uint8_t> mask(8);
  dataset.read_mask(0, 8, mask.data());
  EXPECT_EQ(mask, (std::vector<uint8_t>{1, 1, 1, 0, 1, 0, 0, 1}));
  dataset.read_mask(4, 3, mask.data());
  EXPECT_EQ(std::vector<uint8_t>(mask.begin(), mask.begin() + 3), (std::vector<uint8_t>{1, 0, 0}));
  dataset.verify_hashes();
  // A reader that knows no masks must not take it for text.
  EXPECT_NE(read_text(folder / "dataset.json").find("\"version\": 2"), std::string::npos);
  std::string header("FSDPTMSK\1\0\0\0\1\0\0\0\5\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 32);
  header.append(32, '\0');
  EXPECT_EQ(read_text(folder / "train-1.msk"), header + std::string("\0\1\0\0\1", 5));
}

TEST(TokenShards, DamagedMasksAreRefused) {
  const TemporaryFolder folder;
  write_masked_dataset(folder.path());
  const std::string good = read_text(folder / "train-1.msk");
  std::vector<uint8_t> mask(8);
  const auto read_it = [&] { TokenDataset::open(folder.path(), "train").read_mask(0, 8, mask.data()); };
  const auto damage = [&](size_t offset, char value) {
    std::string bad = good;
    bad[offset] = value;
    write_text(folder / "train-1.msk", bad);
    const Caught error = catch_error(read_it);
    EXPECT_TRUE(error.kind == ErrorKind::kData && error.says("train-1.msk") && error.is_one_line()) << error.text;
    EXPECT_TRUE(catch_error([&] { TokenDataset::open(folder.path(), "train").verify_hashes(); }).says("train-1.msk"));
  };
  damage(0, 'X');
  damage(12, 2);
  damage(16, 4);
  damage(66, 2);
  write_text(folder / "train-1.msk", good.substr(0, good.size() - 1));
  EXPECT_TRUE(catch_error(read_it).says("train-1.msk': got 68 bytes"));
  std::filesystem::remove(folder / "train-1.msk");
  EXPECT_TRUE(catch_error(read_it).says("train-1.msk': got no such file"));
  const std::string manifest = read_text(folder / "dataset.json");
  std::string bad = manifest;
  bad.replace(bad.find("\"num_answers\": 2"), 16, "\"num_answers\": 6");
  write_text(folder / "dataset.json", bad);
  EXPECT_TRUE(catch_error(read_it).says("got 6 answers"));
}

TEST(TokenShards, MaskAndTokensGoTogether) {
  const TemporaryFolder folder;
  TokenShardWriter masked(folder / "a", 1, AnswerMask::kPerToken);
  EXPECT_TRUE(catch_error([&] { masked.add_document(Tokens{1, 2}); }).says("a mask of 0 entries for 2 tokens"));
  TokenShardWriter plain(folder / "b", 1);
  EXPECT_TRUE(catch_error([&] { plain.add_document(Tokens{1}, std::vector<uint8_t>{1}); }).says("expected none"));
}

TEST(TokenShards, BadManifestsAreRefused) {
  const TemporaryFolder folder;
  write_dataset(folder.path(), {{{1, 2, 3}}}, 1);
  const std::string good = read_text(folder / "dataset.json");
  const struct {
    const char* from;
    const char* to;
    const char* says;
  } cases[] = {
      {"\"version\": 1", "\"version\": 3", "got version 3"},
      {"\"vocab_size\": 256", "\"vocab_size\": 0", "as \"vocab_size\""},
      {"\"vocab_size\": 256", "\"vocab_size\": 1.5", "as \"vocab_size\""},
      {"\"eos_id\": 0", "\"eos_id\": 256", "eos_id outside"},
      {"\"tokenizer\": \"test\"", "\"tokenizer\": 1", "no string as \"tokenizer\""},
      {"\"splits\"", "\"parts\"", "got no \"splits\""},
      {"train-0", "../train-0", "plain file name"},
      {"\"num_tokens\": 3", "\"num_tokens\": 4", "train-0.bin': got 3 tokens"},
      {"\"num_tokens\": 3", "\"num_tokens\": -1", "as \"num_tokens\""},
      {"\"num_tokens\": 3", "\"num_tokens\": 18446744073709551615", "as \"num_tokens\""},
      {"\"num_documents\": 1", "\"num_documents\": 2", "1 documents"},
      {"train-0", "train-9", "train-9.bin': got no such file"},
  };
  for (const auto& c : cases) {
    std::string bad = good;
    bad.replace(bad.find(c.from), std::strlen(c.from), c.to);
    write_text(folder / "dataset.json", bad);
    const Caught error = catch_error([&] { TokenDataset::open(folder.path(), "train"); });
    EXPECT_TRUE(error.kind == ErrorKind::kData && error.says(c.says) && error.is_one_line()) << error.text;
  }
}

// Opens the split and reads everything that can be read.
void read_whole_dataset(const std::filesystem::path& folder) {
  const TokenDataset dataset = TokenDataset::open(folder, "train");
  read(dataset, 0, dataset.num_tokens());
  dataset.document_starts(0, dataset.num_tokens());
}

TEST(TokenShards, TruncationAtEveryLengthIsAnError) {
  const TemporaryFolder folder;
  write_dataset(folder.path(), {{{1, 2, 3}, {4, 5}, {6}}}, 2);
  for (const char* name : {"train-0.bin", "train-0.idx", "dataset.json"}) {
    const std::string good = read_text(folder / name);
    for (size_t length = 0; length + 1 < good.size(); ++length) {
      write_text(folder / name, good.substr(0, length));
      const Caught error = catch_error([&] { read_whole_dataset(folder.path()); });
      EXPECT_TRUE(error.kind == ErrorKind::kData && error.says(name) && error.is_one_line()) << length << error.text;
    }
    write_text(folder / name, good + "x");
    EXPECT_TRUE(catch_error([&] { read_whole_dataset(folder.path()); }).says(name)) << name;
    write_text(folder / name, good);
  }
}

TEST(TokenShards, EveryFlippedByteIsReadOrRefused) {
  const TemporaryFolder folder;
  write_dataset(folder.path(), {{{1, 2, 3}, {4, 5}, {6}}}, 2);
  for (const char* name : {"train-0.bin", "train-0.idx", "dataset.json"}) {
    const std::string good = read_text(folder / name);
    for (size_t i = 0; i < good.size(); ++i) {
      for (int flip : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ flip);
        write_text(folder / name, bad);
        const Caught error = catch_error([&] { read_whole_dataset(folder.path()); });
        const bool is_shard_header = i < 64 && name[0] == 't';
        EXPECT_TRUE(error.kind == ErrorKind::kData || !is_shard_header) << name << " " << i << ": " << error.text;
        EXPECT_TRUE(error.text == "no error" || error.kind == ErrorKind::kData) << error.text;
        if (name[0] == 't') {  // the hash sees every flip
          EXPECT_TRUE(catch_error([&] { TokenDataset::open(folder.path(), "train").verify_hashes(); }).says(name));
        }
      }
    }
    write_text(folder / name, good);
  }
}

TEST(TokenShards, FileThatShrinksWhileOpenIsAnError) {
  const TemporaryFolder folder;
  write_dataset(folder.path(), {{{1, 2, 3}, {4, 5}}}, 1);
  const TokenDataset dataset = TokenDataset::open(folder.path(), "train");
  std::filesystem::resize_file(folder / "train-0.bin", 66);
  std::filesystem::resize_file(folder / "train-0.idx", 72);
  EXPECT_TRUE(catch_error([&] { read(dataset, 0, 5); }).says("end of the file at byte 66"));
  EXPECT_TRUE(catch_error([&] { dataset.document_starts(0, 5); }).says("end of the file at byte 72"));
}

RC_GTEST_PROP(TokenShardsProperty, EveryRangeIsRight, (std::vector<std::vector<uint8_t>> sizes)) {
  const TemporaryFolder folder;
  std::vector<Documents> shards;
  Tokens all;
  std::vector<int64_t> starts;
  for (const auto& shard : sizes) {
    shards.emplace_back();
    for (uint8_t size : shard) {
      Tokens document(1 + size % 9, size);
      starts.push_back(static_cast<int64_t>(all.size()));
      all.insert(all.end(), document.begin(), document.end());
      shards.back().push_back(document);
    }
  }
  write_dataset(folder.path(), shards, 2);
  const TokenDataset dataset = TokenDataset::open(folder.path(), "train");
  const auto total = static_cast<int64_t>(all.size());
  RC_ASSERT(dataset.num_tokens() == total);
  const int64_t first = *rc::gen::inRange<int64_t>(0, total + 1);
  const int64_t n = *rc::gen::inRange<int64_t>(0, total - first + 1);
  RC_ASSERT(read(dataset, first, n) == Tokens(all.begin() + first, all.begin() + first + n));
  std::vector<int64_t> expected;
  for (int64_t start : starts) {
    if (start >= first && start < first + n) expected.push_back(start - first);
  }
  RC_ASSERT(dataset.document_starts(first, n) == expected);
}

}  // namespace
}  // namespace fsdp::io
