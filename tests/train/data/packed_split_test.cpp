#include "train/data/packed_split.h"

#include <gtest/gtest.h>

#include <numeric>

#include "fsdp/base/error.h"
#include "tests/io/temporary_folder.h"

namespace fsdp::train {
namespace {

// Documents of the given lengths; tokens count from 0 through all of them.
io::TokenDataset make_dataset(const io::TemporaryFolder& folder, const std::vector<int>& lengths) {
  io::TokenShardWriter writer(folder / "train-00000", 2);
  int32_t next = 0;
  for (const int length : lengths) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < length; ++i) {
      tokens.push_back(next++);
    }
    writer.add_document(tokens);
  }
  io::write_dataset_manifest(folder.path(), {"test", 1000, -1, {{"train", {writer.commit()}}}});
  return io::TokenDataset::open(folder.path(), "train");
}

TEST(PackedSplit, PredictsEachTokenOnceExceptDocumentStarts) {
  const io::TemporaryFolder folder;
  const PackedSplit split(make_dataset(folder, {3, 6, 1, 1, 4}), 4);  // starts: 0 3 9 10 11; 15 tokens
  ASSERT_EQ(split.num_sequences(), 4);
  std::vector<int64_t> predicted;
  for (int64_t i = 0; i < split.num_sequences(); ++i) {
    const Example example = split.read(i);
    ASSERT_EQ(example.inputs.size(), 4u);
    ASSERT_EQ(example.targets.size(), 4u);
    int64_t targets = 0;
    for (size_t t = 0; t < 4; ++t) {
      if (example.targets[t] != kNoTarget) {
        EXPECT_EQ(example.targets[t], example.inputs[t] + 1);
        predicted.push_back(example.targets[t]);
        ++targets;
      }
    }
    EXPECT_EQ(split.num_targets(i), targets);
  }
  EXPECT_EQ(predicted, (std::vector<int64_t>{1, 2, 4, 5, 6, 7, 8, 12, 13, 14}));
  EXPECT_EQ(split.num_targets(std::vector<int64_t>{0, 1, 2, 3}), 10);
}

TEST(PackedSplit, SegmentsStartWithDocuments) {
  const io::TemporaryFolder folder;
  const PackedSplit split(make_dataset(folder, {3, 6, 1, 1, 4}), 4);
  EXPECT_EQ(split.read(0).segment_starts, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(split.read(1).segment_starts, (std::vector<int64_t>{0}));
  EXPECT_EQ(split.read(2).segment_starts, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(split.read(3).segment_starts, (std::vector<int64_t>{0, 2}));  // tokens 12 13, then padding
  EXPECT_EQ(split.read(3).targets, (std::vector<int64_t>{13, 14, kNoTarget, kNoTarget}));
}

TEST(PackedSplit, TooLittleDataHasNoSequences) {
  const io::TemporaryFolder folder;
  EXPECT_EQ(PackedSplit(make_dataset(folder, {1}), 4).num_sequences(), 0);
}

// One folder per data set; each counts its tokens from 100, 200, ...
PackedSplit make_mixture(const io::TemporaryFolder& folder, const std::vector<int>& lengths, int64_t length) {
  std::vector<PackedSplit::Source> sources;
  for (const int tokens : lengths) {
    const auto place = folder / ("set" + std::to_string(sources.size()));
    std::filesystem::create_directory(place);
    io::TokenShardWriter writer(place / "train-00000", 2);
    std::vector<int32_t> document(static_cast<size_t>(tokens));
    std::iota(document.begin(), document.end(), static_cast<int32_t>(100 * (sources.size() + 1)));
    writer.add_document(document);
    io::write_dataset_manifest(place, {"test", 1000, -1, {{"train", {writer.commit()}}}});
    sources.push_back({io::TokenDataset::open(place, "train"), 1});
  }
  return PackedSplit(std::move(sources), length);
}

TEST(PackedSplit, SourcesFollowEachOtherAndNeverMix) {
  const io::TemporaryFolder folder;
  const PackedSplit split = make_mixture(folder, {9, 1, 6}, 4);  // 2, 0 and 2 sequences
  ASSERT_EQ(split.num_sequences(), 4);
  EXPECT_EQ(split.num_sequences(1), 0);
  EXPECT_EQ(split.num_tokens(), 16);
  EXPECT_EQ(split.read(1).inputs, (std::vector<int32_t>{104, 105, 106, 107}));
  EXPECT_EQ(split.read(2).inputs, (std::vector<int32_t>{300, 301, 302, 303}));
  EXPECT_EQ(split.read(3).targets, (std::vector<int64_t>{305, kNoTarget, kNoTarget, kNoTarget}));
  EXPECT_EQ(split.num_targets(std::vector<int64_t>{0, 1, 2, 3}), 13);
  EXPECT_DOUBLE_EQ(split.fill_rate(), 13.0 / 16);
  EXPECT_DOUBLE_EQ(split.target_rate(), 13.0 / 16);
}

TEST(PackedSplit, OnlyAnswersArePredicted) {
  const io::TemporaryFolder folder;
  io::TokenShardWriter writer(folder / "train-00000", 2, io::AnswerMask::kPerToken);
  writer.add_document(std::vector<int32_t>{1, 2, 3, 4}, std::vector<uint8_t>{0, 0, 1, 1});
  writer.add_document(std::vector<int32_t>{5, 6, 7}, std::vector<uint8_t>{1, 0, 1});  // 5 starts a document
  io::write_dataset_manifest(folder.path(), {"test", 1000, -1, {{"train", {writer.commit()}}}});
  const PackedSplit split(io::TokenDataset::open(folder.path(), "train"), 6);
  ASSERT_EQ(split.num_sequences(), 1);
  EXPECT_EQ(split.read(0).inputs, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(split.read(0).targets, (std::vector<int64_t>{kNoTarget, 3, 4, kNoTarget, kNoTarget, 7}));
  EXPECT_EQ(split.num_targets(0), 3);
}

TEST(PackedSplit, ExactFitHasNoPadding) {
  const io::TemporaryFolder folder;
  const PackedSplit split(make_dataset(folder, {9}), 4);
  ASSERT_EQ(split.num_sequences(), 2);
  EXPECT_EQ(split.num_targets(1), 4);
  EXPECT_EQ(split.read(1).segment_starts.size(), 1u);
}

// Documents two by two, of which the first two tokens are the prompt.
io::TokenDataset make_pairs(const io::TemporaryFolder& folder, const std::vector<std::pair<int, int>>& lengths) {
  io::TokenShardWriter writer(folder / "train-00000", 2, io::AnswerMask::kPerToken);
  int32_t next = 0;
  for (const auto& [chosen, rejected] : lengths) {
    for (const int length : {chosen, rejected}) {
      std::vector<int32_t> tokens(static_cast<size_t>(length));
      std::iota(tokens.begin(), tokens.end(), next);
      next += length;
      std::vector<uint8_t> mask(tokens.size(), 1);
      mask[0] = mask[1] = 0;
      writer.add_document(tokens, mask);
    }
  }
  io::DatasetManifest manifest{"test", 1000, -1, {{"train", {writer.commit()}}}};
  manifest.documents = io::Documents::kPairs;
  io::write_dataset_manifest(folder.path(), manifest);
  return io::TokenDataset::open(folder.path(), "train");
}

TEST(PackedSplit, OfPairsHasOneInEachSequence) {
  const io::TemporaryFolder folder;
  const PackedSplit split(make_pairs(folder, {{3, 4}, {5, 3}, {4, 4}}), 8);
  ASSERT_TRUE(split.is_of_pairs());
  ASSERT_EQ(split.num_sequences(), 3);
  const Example first = split.read(0);  // 0 1 2 | 3 4 5 (6)
  EXPECT_EQ(first.inputs, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 0, 0}));
  EXPECT_EQ(first.targets, (std::vector<int64_t>{kNoTarget, 2, kNoTarget, kNoTarget, 5, 6, kNoTarget, kNoTarget}));
  EXPECT_EQ(first.segment_starts, (std::vector<int64_t>{0, 3, 6}));
  EXPECT_EQ(first.chosen_end, 3);
  EXPECT_EQ(first.pair_end, 6);
  EXPECT_EQ(split.num_targets(0), 3);
  const Example last = split.read(2);
  EXPECT_EQ(last.inputs.front(), 15);
  EXPECT_EQ(last.chosen_end, 4);
  EXPECT_EQ(last.pair_end, 7);
  try {
    [[maybe_unused]] const PackedSplit refused(make_pairs(folder, {{3, 4}, {9, 5}}), 8);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("got 1 of 2 pairs that are longer"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("Set it to 13"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace fsdp::train
