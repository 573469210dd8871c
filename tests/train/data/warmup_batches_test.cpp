// Batches whose size and whose sequences grow with the steps: the same for any number of ranks, without a gap.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "io/tokens/token_shards.h"
#include "tests/io/temporary_folder.h"
#include "train/data/batch_source.h"
#include "train/loop/ledger.h"

namespace fsdp::train {
namespace {

constexpr int64_t kWarmupLength = 32;

PackedSplit split_of_documents(const io::TemporaryFolder& folder) {
  std::mt19937_64 random(3);
  io::TokenShardWriter writer(folder / "train-00000", 2);
  for (int i = 0; i < 600; ++i) {
    std::vector<int32_t> document(1 + random() % 60);
    for (int32_t& token : document) token = static_cast<int32_t>(random() % 1000);
    writer.add_document(document);
  }
  io::write_dataset_manifest(folder.path(), {"test", 1000, -1, {{"train", {writer.commit()}}}});
  return PackedSplit(io::TokenDataset::open(folder.path(), "train"), kWarmupLength);
}

// 4, 4, 8, 8, 12, 12, 16, ... sequences.
Config growing_batch() {
  Config config;
  config.data.sequence_length = kWarmupLength;
  config.train.batch_sequences = 16;
  config.train.batch_warmup_sequences = 4;
  config.train.batch_warmup_steps = 6;
  return config;
}

RankPlace place_in(int64_t rank, int64_t ranks) {
  RankPlace place;
  place.num_data = static_cast<int>(ranks);
  place.data_index = static_cast<int>(rank);
  return place;
}

TEST(WarmupBatches, AreTheSameForAnyNumberOfRanks) {
  const io::TemporaryFolder folder;
  const PackedSplit split = split_of_documents(folder);
  const PackedBatches alone(growing_batch(), place_in(0, 1), split);
  int64_t begin = 0;
  for (int64_t step = 0; step < 10; ++step) {
    const int64_t size = std::min<int64_t>(16, 4 * (1 + step / 2));
    EXPECT_EQ(alone.num_sequences(step), size);
    EXPECT_EQ(alone.consumed(step), begin) << "no sequence is left out or comes twice";
    EXPECT_EQ(alone.tokens_before(step), begin * kWarmupLength);
    const uint64_t expected = hash_rows(alone.microbatch(step, 0), begin);
    for (const auto& [ranks, micro_sequences, balance] :
         {std::tuple(2, 0, false), {2, 2, false}, {4, 1, false}, {2, 1, true}}) {
      Config config = growing_batch();
      config.train.microbatch_sequences = micro_sequences;
      config.data.balance = balance;
      uint64_t hash = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        PackedBatches batches(config, place_in(rank, ranks), split);
        // As after a resume in the middle.
        if (step >= 3) batches.continue_at(3, 4 + 4 + 8);
        EXPECT_EQ(batches.num_microbatches(step), micro_sequences == 0 ? 1 : size / ranks / micro_sequences);
        EXPECT_EQ(batches.num_targets(step), alone.num_targets(step));
        const StepBatches read = batches.read_step(batches.place_of(step));
        for (size_t micro = 0; micro < read.microbatches.size(); ++micro)
          hash += hash_rows(read.microbatches[micro], batches.position(step, static_cast<int64_t>(micro)));
      }
      EXPECT_EQ(hash, expected) << ranks << " ranks, step " << step;
    }
    begin += size;
  }
}

TEST(WarmupBatches, TokensOfARunThatHadOtherBatchesAreCounted) {
  const io::TemporaryFolder folder;
  const PackedSplit split = split_of_documents(folder);
  PackedBatches batches(growing_batch(), place_in(0, 1), split);
  batches.continue_at(8, 100);
  EXPECT_EQ(batches.tokens_before(8), 100 * kWarmupLength);
  EXPECT_EQ(batches.tokens_before(10), 132 * kWarmupLength);
}

TEST(WarmupBatches, SequencesAreCutAndNoTokenIsLost) {
  const io::TemporaryFolder folder;
  const PackedSplit split = split_of_documents(folder);
  Config config = growing_batch();
  const PackedBatches whole(config, place_in(0, 1), split);
  config.data.sequence_warmup_length = 5;
  config.data.sequence_warmup_steps = 8;
  const PackedBatches cut(config, place_in(0, 1), split);
  for (const auto& [step, pieces] : {std::pair(0, 7), {1, 4}, {4, 2}, {8, 1}}) {
    const Batch expected = whole.microbatch(step, 0), batch = cut.microbatch(step, 0);
    EXPECT_TRUE(batch.input_ids_BT.equal(expected.input_ids_BT));
    EXPECT_TRUE(batch.targets_N.equal(expected.targets_N));
    EXPECT_EQ(cut.num_targets(step), whole.num_targets(step));
    // Documents begin where they did, and at each piece.
    const auto starts_of = [](const Batch& of) {
      const auto* starts = of.sequence.cu_seqlens.const_data_ptr<int32_t>();
      return std::vector<int32_t>(starts, starts + of.sequence.cu_seqlens.numel());
    };
    const std::vector<int32_t> starts = starts_of(batch), documents = starts_of(expected);
    std::set<int32_t> wanted(documents.begin(), documents.end());
    int32_t longest = 0;
    for (int32_t row = 0; row < batch.input_ids_BT.size(0); ++row) {
      for (int32_t piece = 0; piece < pieces; ++piece) wanted.insert(row * 32 + piece * 32 / pieces);
    }
    EXPECT_EQ(starts, std::vector<int32_t>(wanted.begin(), wanted.end())) << "step " << step;
    for (size_t i = 1; i < starts.size(); ++i) longest = std::max(longest, starts[i] - starts[i - 1]);
    EXPECT_LE(longest, step >= 8 ? 32 : 5 + step * 27 / 8) << "step " << step;
  }
}

}  // namespace
}  // namespace fsdp::train
