// What a sharded model costs in memory is arithmetic, and the arithmetic is this file's own: no layout code of fsdp's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::memory_test {
namespace {

using testing::batch;
using testing::BlockModel;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

constexpr int kBlocks = 3;

// One rank's elements of all units; `align` elements are 16 bytes of the smallest dtype.
int64_t all_shards(int64_t ranks, int64_t align) {
  return testing::root_shard_numel(ranks, align) + kBlocks * testing::block_shard_numel(ranks, align);
}

void train_step(ShardedBlocks& sharded, const World& world, AdamW& optimizer) {
  const torch::Tensor rows = share_of(world, batch(1)).to(sharded.module->inlet->weight.scalar_type());
  loss_of(*sharded.module, rows).backward();
  optimizer.step();
  zero_grad(*sharded.module);
}

TEST(Memory, RestingBytesAreTheFormulaOfTheStrategy) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Strategy strategy :
         {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
      run_ranks(ranks, [&](const World& world) {
        SCOPED_TRACE(c10::str(name(strategy), ", ", ranks, " ranks"));
        ShardOptions options;
        options.strategy = strategy;
        ShardedBlocks sharded = shard_blocks(world, options, kBlocks);
        AdamW optimizer(parameters(*sharded.module), {});
        EXPECT_EQ(sharded.root.resting_bytes().main_grad, 0);  // until the first backward
        train_step(sharded, world, optimizer);
        const RestingBytes bytes = sharded.root.resting_bytes();
        const int64_t shard = all_shards(ranks, 4) * 4;
        const bool cut = strategy != Strategy::kNoShard;
        EXPECT_EQ(bytes.main_weight, cut ? shard : shard * ranks);
        EXPECT_EQ(bytes.main_grad, bytes.main_weight);
        const bool keeps_all = strategy == Strategy::kOptim && ranks > 1;
        EXPECT_EQ(bytes.model_weight, keeps_all ? shard * ranks : 0);
        EXPECT_EQ(optimizer.state_bytes(), 2 * bytes.main_weight);
        EXPECT_EQ(sharded.root.counters().resident_unsharded_bytes, 0);
      });
    }
  }
}

TEST(Memory, LowPrecisionAddsItsShard) {
  run_ranks(3, [](const World& world) {
    ShardOptions options;
    options.precision = Precision::bf16();
    ShardedBlocks sharded = shard_blocks(world, options, kBlocks);
    AdamW optimizer(parameters(*sharded.module), {});
    train_step(sharded, world, optimizer);
    const int64_t shard = all_shards(3, 8);
    const RestingBytes bytes = sharded.root.resting_bytes();
    EXPECT_EQ(bytes.main_weight, 4 * shard);
    EXPECT_EQ(bytes.model_weight, 2 * shard);
    EXPECT_EQ(bytes.main_grad, 4 * shard);
    EXPECT_EQ(optimizer.state_bytes(), 8 * shard);
  });
}

TEST(Memory, AtMostTheRootAndTwoBlocksAreGathered) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](const World& world) {
      ShardedBlocks sharded = shard_blocks(world, {}, 6);
      AdamW optimizer(parameters(*sharded.module), {});
      const int64_t root = testing::root_shard_numel(ranks) * ranks * 4;
      const int64_t block = testing::block_shard_numel(ranks) * ranks * 4;
      for (int step = 0; step < 4; ++step) {
        sharded.root.reset_counters();
        train_step(sharded, world, optimizer);
        EXPECT_LE(sharded.root.counters().peak_unsharded_bytes, root + 2 * block) << "step " << step;
        EXPECT_GE(sharded.root.counters().peak_unsharded_bytes, root + block) << "step " << step;
      }
    });
  }
}

TEST(Memory, SteadyStepsTakeNothingFromTheSystem) {
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    run_ranks(2, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      ShardedBlocks sharded = shard_blocks(world, options, 5);
      AdamW optimizer(parameters(*sharded.module), {});
      for (int step = 0; step < 2; ++step) train_step(sharded, world, optimizer);
      const int64_t before = sharded.root.counters().buffer_allocations;
      for (int step = 0; step < 4; ++step) train_step(sharded, world, optimizer);
      EXPECT_EQ(sharded.root.counters().buffer_allocations, before) << name(strategy);
    });
  }
}

// What autograd saved stays valid: gathers write memory, not versions. Optimizers move the versions of leaves.
// So autograd refuses what it saved before an optimizer's step, as it does of a plain model.
TEST(Memory, GathersMoveNoVersionAndOptimizersDo) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, {}, kBlocks);
    AdamW optimizer(parameters(*sharded.module), {});
    std::vector<int64_t> model_versions;
    for (const torch::Tensor& parameter : sharded.module->parameters()) model_versions.push_back(parameter._version());
    const torch::Tensor leaf = parameters(*sharded.module).front();
    for (int step = 0; step < 3; ++step) {
      const int64_t before = leaf._version();
      train_step(sharded, world, optimizer);
      EXPECT_GT(leaf._version(), before);
    }
    size_t i = 0;
    for (const torch::Tensor& parameter : sharded.module->parameters()) {
      EXPECT_EQ(parameter._version(), model_versions[i++] + 2);  // the third step has had no forward since
    }
  });
}

// The parameters' storage objects live as long as the model; their memory comes and goes.
TEST(Memory, StoragesStayAndTheirMemoryDoesNot) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world, {}, kBlocks);
    const torch::Tensor weight = sharded.module->block(1).up->weight;
    const auto* storage = weight.storage().unsafeGetStorageImpl();
    EXPECT_EQ(storage->nbytes(), 0U);
    sharded.blocks[1].unshard();
    EXPECT_EQ(static_cast<int64_t>(storage->nbytes()), testing::block_shard_numel(2) * 2 * 4);
    EXPECT_EQ(weight.storage().unsafeGetStorageImpl(), storage);
    sharded.blocks[1].reshard();
    EXPECT_EQ(storage->nbytes(), 0U);
    EXPECT_EQ(sharded.module->block(1).up->weight.storage().unsafeGetStorageImpl(), storage);
  });
}

TEST(Memory, DescribeNamesEveryUnitByItsFullPath) {
  run_ranks(2, [](const World& world) {
    torch::nn::Sequential outer;
    outer->push_back(std::make_shared<BlockModel>(2));
    ShardOptions options;
    options.initial_weights = InitialWeights::kBroadcast;
    const Mesh mesh = Mesh::shard(world);
    auto& inner = outer->at<BlockModel>(0);
    for (size_t i = 0; i < 2; ++i) {
      fully_shard(*inner.block(i).up, mesh, options);
      fully_shard(inner.block(i), mesh, options);
    }
    fully_shard(inner, mesh, options);
    outer->push_back(torch::nn::Linear(3, 3));
    const Unit root = fully_shard(*outer, mesh, options);
    const std::string table = root.describe();
    for (const char* name : {"root", "  0 ", "0.layers.0 ", "0.layers.0.up ", "0.layers.1 ", "0.layers.1.up "}) {
      EXPECT_THAT(table, HasSubstr(name));
    }
    EXPECT_EQ(root.num_units(), 6);
    EXPECT_EQ(root.num_parameters(), (6 * 5 + 6 + 3 * 6 + 3) + 2 * (18 * 6 + 18 + 6 * 18 + 6) + 12);
  });
}

TEST(Memory, ErrorsNameParametersByTheirFullPath) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    const torch::NoGradGuard no_grad;
    sharded.module->block(2).down->bias.zero_();
    EXPECT_THAT(testing::error_of([&] { zero_grad(*sharded.module); }), HasSubstr("'layers.2.down.bias'"));
  });
}

}  // namespace
}  // namespace fsdp::memory_test
