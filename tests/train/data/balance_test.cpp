#include "train/data/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "tests/io/temporary_folder.h"
#include "train/data/batch_source.h"
#include "train/loop/ledger.h"

namespace fsdp::train {
namespace {

// Pairs that attention computes in a sequence of documents whose lengths are drawn as text has them: many short ones,
// some that fill it.
double drawn_work(std::mt19937_64& random, int64_t length) {
  std::lognormal_distribution<double> lengths(std::log(static_cast<double>(length) / 8), 1.2);
  double work = 0;
  for (int64_t left = length; left > 0;) {
    const auto document = std::clamp<int64_t>(std::llround(lengths(random)), 1, left);
    work += 0.5 * static_cast<double>(document) * static_cast<double>(document + 1);
    left -= document;
  }
  return work;
}

std::vector<double> drawn_batch(std::mt19937_64& random, const DealShape& shape) {
  std::vector<double> work(static_cast<size_t>(shape.num_sequences()));
  for (double& each : work) each = drawn_work(random, 4096);
  return work;
}

std::vector<int64_t> in_order(const DealShape& shape) {
  std::vector<int64_t> order(static_cast<size_t>(shape.num_sequences()));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

constexpr uint64_t kSeed = 20261125;

TEST(Balance, RanksDifferByAtMostTwoPercent) {
  std::mt19937_64 random(kSeed);
  for (const DealShape shape : {DealShape{2, 8, 1}, DealShape{4, 8, 1}, DealShape{8, 8, 1}, DealShape{8, 4, 4},
                                DealShape{16, 16, 1}, DealShape{3, 1, 16}}) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << ": " << shape.num_ranks << " x " << shape.num_microbatches
                                      << " x " << shape.micro_sequences);
    for (int batch = 0; batch < 50; ++batch) {
      const std::vector<double> work = drawn_batch(random, shape);
      const std::vector<int64_t> dealt = deal_by_work(work, shape);
      EXPECT_LE(imbalance(work, shape, dealt), 0.02);
      EXPECT_LE(imbalance(work, shape, dealt), imbalance(work, shape, in_order(shape)));
    }
  }
}

TEST(Balance, EverySequenceIsDealtOnce) {
  std::mt19937_64 random(kSeed);
  for (const DealShape shape : {DealShape{1, 1, 1}, DealShape{4, 1, 1}, DealShape{3, 2, 5}, DealShape{1, 7, 2}}) {
    std::vector<int64_t> dealt = deal_by_work(drawn_batch(random, shape), shape);
    std::sort(dealt.begin(), dealt.end());
    EXPECT_EQ(dealt, in_order(shape));
  }
}

// Ranks wait for each other in every microbatch: what they have there is alike.
TEST(Balance, MicrobatchesOfOneTimeAreAlike) {
  std::mt19937_64 random(kSeed);
  const DealShape shape{4, 16, 1};
  double as_dealt = 0, as_they_come = 0;
  for (int batch = 0; batch < 20; ++batch) {
    const std::vector<double> work = drawn_batch(random, shape);
    const std::vector<int64_t> dealt = deal_by_work(work, shape), order = in_order(shape);
    for (int64_t micro = 0; micro < shape.num_microbatches; ++micro) {
      const auto slowest = [&](const std::vector<int64_t>& places) {
        double most = 0;
        for (int64_t rank = 0; rank < shape.num_ranks; ++rank) {
          const auto place = static_cast<size_t>(rank * shape.num_microbatches + micro);
          most = std::max(most, work[static_cast<size_t>(places[place])]);
        }
        return most;
      };
      as_dealt += slowest(dealt);
      as_they_come += slowest(order);
    }
  }
  EXPECT_LT(as_dealt, 0.85 * as_they_come) << "seed " << kSeed;
}

TEST(Balance, EqualWorkKeepsTheOrderOfRounds) {
  const DealShape shape{2, 2, 1};
  EXPECT_EQ(deal_by_work({1, 1, 1, 1}, shape), (std::vector<int64_t>{0, 2, 1, 3}));
  EXPECT_EQ(imbalance({0, 0, 0, 0}, shape, {0, 1, 2, 3}), 0);
}

// ---- batches of a data set

constexpr int64_t kLength = 64;

PackedSplit make_split(const io::TemporaryFolder& folder) {
  std::mt19937_64 random(kSeed);
  std::lognormal_distribution<double> lengths(std::log(12.0), 1.2);
  io::TokenShardWriter writer(folder / "train-00000", 2);
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> document(static_cast<size_t>(std::clamp<int64_t>(std::llround(lengths(random)), 1, 200)));
    for (int32_t& token : document) token = static_cast<int32_t>(random() % 1000);
    writer.add_document(document);
  }
  io::write_dataset_manifest(folder.path(), {"test", 1000, -1, {{"train", {writer.commit()}}}});
  return PackedSplit(io::TokenDataset::open(folder.path(), "train"), kLength);
}

// Pairs that attention joins, counted one by one from what the model is given.
double counted_work(const PackedSplit& split, int64_t sequence) {
  const std::vector<int64_t> starts = split.read(sequence).segment_starts;
  double pairs = 0;
  for (int64_t t = 0; t < kLength; ++t)
    pairs += static_cast<double>(t - *(std::upper_bound(starts.begin(), starts.end(), t) - 1) + 1);
  return pairs;
}

TEST(BalancedBatches, WorkIsCountedFromTheIndex) {
  const io::TemporaryFolder folder;
  const PackedSplit split = make_split(folder);
  for (int64_t i = split.num_sequences() - 50; i < split.num_sequences(); ++i) {  // the last one has padding
    EXPECT_EQ(split.attention_work(i), counted_work(split, i)) << i;
  }
}

Config config_of(bool balance) {
  Config config;
  config.data.sequence_length = kLength;
  config.data.balance = balance;
  config.train.batch_sequences = 64;
  config.train.microbatch_sequences = 4;
  return config;
}

// The sum over rows that the ledger holds, and the rows of each rank.
struct Dealt {
  uint64_t hash = 0;
  int64_t num_targets = 0;
  std::vector<std::vector<at::Tensor>> inputs;
};
Dealt step_of(const PackedSplit& split, bool balance, int64_t num_ranks, int64_t step) {
  Dealt dealt;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    RankPlace place;
    place.num_data = static_cast<int>(num_ranks);
    place.data_index = static_cast<int>(rank);
    const PackedBatches batches(config_of(balance), place, split);
    dealt.num_targets = batches.num_targets(step);
    std::vector<at::Tensor>& rows = dealt.inputs.emplace_back();
    const StepBatches read = batches.read_step(batches.place_of(step));
    EXPECT_EQ(read.num_targets, dealt.num_targets);
    for (int64_t micro = 0; micro < batches.num_microbatches(step); ++micro) {
      const Batch batch = batches.microbatch(step, micro);
      EXPECT_TRUE(batch.input_ids_BT.equal(read.microbatches[static_cast<size_t>(micro)].input_ids_BT));
      dealt.hash += hash_rows(batch, batches.position(step, micro));
      rows.push_back(batch.input_ids_BT);
    }
  }
  return dealt;
}

TEST(BalancedBatches, AreTheSameGlobalBatches) {
  const io::TemporaryFolder folder;
  const PackedSplit split = make_split(folder);
  for (const int64_t num_ranks : {1, 2, 4}) {
    for (int64_t step = 0; step < 5; ++step) {
      const Dealt plain = step_of(split, false, num_ranks, step), balanced = step_of(split, true, num_ranks, step);
      EXPECT_EQ(balanced.hash, plain.hash);
      EXPECT_EQ(balanced.num_targets, plain.num_targets);
    }
  }
}

// By the tokens of a sequence, which tell it from the others.
std::map<std::vector<int64_t>, double> work_by_tokens(const PackedSplit& split) {
  std::map<std::vector<int64_t>, double> work;
  for (int64_t i = 0; i < split.num_sequences(); ++i) {
    const std::vector<int32_t> inputs = split.read(i).inputs;
    work[{inputs.begin(), inputs.end()}] = counted_work(split, i);
  }
  return work;
}

TEST(BalancedBatches, GiveRanksEqualWork) {
  const io::TemporaryFolder folder;
  const PackedSplit split = make_split(folder);
  const auto work = work_by_tokens(split);
  const auto spread = [&](bool balance, int64_t step) {
    std::vector<double> sums;
    for (int64_t rank = 0; rank < 4; ++rank) {
      RankPlace place;
      place.num_data = 4;
      place.data_index = static_cast<int>(rank);
      const PackedBatches batches(config_of(balance), place, split);
      double& sum = sums.emplace_back(0);
      for (const Batch& batch : batches.read_step(batches.place_of(step)).microbatches) {
        for (const at::Tensor& row : batch.input_ids_BT.unbind()) {
          const auto* tokens = row.const_data_ptr<int64_t>();
          sum += work.at({tokens, tokens + kLength});
        }
      }
    }
    const auto [least, most] = std::minmax_element(sums.begin(), sums.end());
    return (*most - *least) / (std::accumulate(sums.begin(), sums.end(), 0.0) / 4);
  };
  double plain = 0;
  for (int64_t step = 0; step < 10; ++step) {
    EXPECT_LE(spread(true, step), 0.02);
    plain = std::max(plain, spread(false, step));
  }
  EXPECT_GT(plain, 0.1);
}

TEST(BalancedBatches, WorldInvariantRunsRefuseThem) {
  const io::TemporaryFolder folder;
  const PackedSplit split = make_split(folder);
  Config config = config_of(true);
  config.train.world_invariant = true;
  EXPECT_THROW(PackedBatches(config, RankPlace{}, split), Error);
}

}  // namespace
}  // namespace fsdp::train
