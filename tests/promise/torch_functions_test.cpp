// Rows of docs/libtorch_functions.md that are no functions of a module: copies, archives of leaves and optimizers,
// samplers and seeds.
#include <gtest/gtest.h>

#include <mutex>
#include <sstream>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"
#include "tests/support/worlds.h"

namespace fsdp::torch_functions_test {
namespace {

using testing::batch;
using testing::BlockModel;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using testing::for_worlds;
using testing::loss_of;
using testing::make_block_model;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

// As LibTorch's copies do: the layers are the same objects.
TEST(TorchFunctions, ACopyOfAModuleSharesItsParameters) {
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    BlockModel copy = *sharded.module;
    const auto twin = make_block_model();
    loss_of(copy, share_of(world, batch(1))).backward();
    loss_of(*twin, batch(1)).backward();
    expect_same_gradients(*sharded.module, *twin);
    SGD(parameters(copy), {.lr = 0.1}).step();
    torch::optim::SGD(twin->parameters(), 0.1).step();
    expect_same_weights(*sharded.module, *twin);
    zero_grad(*sharded.module);
  });
}

TEST(TorchFunctions, TorchSaveOfALeafWritesThisRanksSlice) {
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const auto twin = make_block_model();
    const auto whole = twin->named_parameters();
    for (const auto& [name, leaf] : named_parameters(*sharded.module)) {
      std::stringstream file;
      torch::save(leaf, file);
      torch::Tensor read;
      torch::load(read, file);
      const LocalRange range = local_range(leaf);
      EXPECT_TRUE(torch::equal(read, whole[name].detach().flatten().slice(0, range.begin, range.end))) << name;
    }
  });
}

// Its file is this rank's: read by the same rank of as many.
TEST(TorchFunctions, TorchSaveOfAnOptimizerWritesThisRanksPart) {
  for_worlds([](const World& world) {
    const auto train = [&](ShardedBlocks& sharded, torch::optim::Optimizer& optimizer, uint64_t seed) {
      loss_of(*sharded.module, share_of(world, batch(seed))).backward();
      optimizer.step();
      optimizer.zero_grad();
    };
    ShardedBlocks sharded = shard_blocks(world), again = shard_blocks(world);
    torch::optim::AdamW optimizer(parameters(*sharded.module), torch::optim::AdamWOptions(0.02));
    torch::optim::AdamW read(parameters(*again.module), torch::optim::AdamWOptions(0.5));
    for (uint64_t seed = 1; seed <= 2; ++seed) train(sharded, optimizer, seed);
    std::stringstream file;
    torch::save(optimizer, file);
    torch::load(read, file);
    const auto from = parameters(*sharded.module);
    const auto to = parameters(*again.module);
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
    }
    train(sharded, optimizer, 3);
    train(again, read, 3);
    for (size_t i = 0; i < from.size(); ++i) EXPECT_TRUE(torch::equal(from[i], to[i])) << i;
  });
}

TEST(TorchFunctions, ClippingLeavesByValueIsThatOfTheTwin) {
  for_worlds([](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const auto twin = make_block_model();
    loss_of(*sharded.module, share_of(world, batch(1))).backward();
    loss_of(*twin, batch(1)).backward();
    torch::nn::utils::clip_grad_value_(parameters(*sharded.module), 0.003);
    torch::nn::utils::clip_grad_value_(twin->parameters(), 0.003);
    expect_same_gradients(*sharded.module, *twin);
    zero_grad(*sharded.module);
  });
}

struct Rows : torch::data::datasets::Dataset<Rows> {
  torch::data::Example<> get(size_t index) override {
    return {batch(index, 1).squeeze(0), torch::tensor(static_cast<int64_t>(index))};
  }
  torch::optional<size_t> size() const override { return 12; }
};

// Of all rows at once. Samplers draw from the generator that ranks share here, also when a loader begins.
template <class Sampler>
std::vector<torch::data::Example<>> load_all_rows() {
  const std::lock_guard lock(testing::global_generator_mutex);
  const auto loader = torch::data::make_data_loader(Rows().map(torch::data::transforms::Stack<>()), Sampler(12),
                                                    torch::data::DataLoaderOptions().batch_size(12));
  std::vector<torch::data::Example<>> batches;
  for (const auto& example : *loader) batches.push_back(example);
  return batches;
}

// One batch of all rows in the order of a sampler, on every rank.
template <class Sampler>
void expect_all_rows_on_each_rank(const World& world) {
  ShardedBlocks sharded = shard_blocks(world);
  const auto twin = make_block_model();
  const auto batches = load_all_rows<Sampler>();
  for (const auto& example : batches) {
    EXPECT_EQ(example.target.sum().template item<int64_t>(), 66);
    loss_of(*sharded.module, example.data).backward();
  }
  EXPECT_EQ(batches.size(), 1);
  std::vector<torch::Tensor> rows;
  for (size_t i = 0; i < 12; ++i) rows.push_back(batch(i, 1).squeeze(0));
  loss_of(*twin, torch::stack(rows)).backward();
  expect_same_gradients(*sharded.module, *twin);
}

TEST(TorchFunctions, SamplersOfOneProcessGiveEveryRankAllRows) {
  for_worlds([](const World& world) {
    expect_all_rows_on_each_rank<torch::data::samplers::SequentialSampler>(world);
    expect_all_rows_on_each_rank<torch::data::samplers::RandomSampler>(world);
  });
}

// Ranks are threads here and share the generator, so each holds it from the seed to the end of its forward, which
// needs no other rank because everybody has all weights.
TEST(TorchFunctions, SeedsOfTheRanksMakeDropoutMasksOfTheRanks) {
  for_worlds([](const World& world) {
    torch::nn::Linear linear(1, 64);
    {
      const torch::NoGradGuard no_grad;
      linear->weight.fill_(1);
      linear->bias.fill_(1);
    }
    ShardOptions options;
    options.strategy = Strategy::kNoShard;
    Unit unit = fully_shard(*linear, Mesh::shard(world), options);
    unit.unshard();
    const auto masks = [&](int rank) {
      return testing::make_seeded(100 + static_cast<uint64_t>(rank), [&] {
        return torch::dropout(linear->forward(torch::ones({1, 1})), 0.5, /*train=*/true).detach() == 0;
      });
    };
    const torch::Tensor mine = masks(world.rank);
    EXPECT_TRUE(torch::equal(mine, masks(world.rank)));
    const torch::Tensor count = sum_over_ranks(world, mine.to(torch::kLong));
    const bool all_the_same = torch::equal(count, world.size * mine.to(torch::kLong));
    EXPECT_EQ(all_the_same, world.size == 1);
  });
}

}  // namespace
}  // namespace fsdp::torch_functions_test
