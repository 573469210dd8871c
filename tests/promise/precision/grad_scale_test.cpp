// What gradients are divided by, in which dtype they travel, and in which they wait for later microbatches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::grad_scale_test {
namespace {

using testing::batch;
using testing::BlockModel;
using testing::error_of;
using testing::expect_same_gradients;
using ::testing::HasSubstr;
using testing::make_block_model;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

// Rows that rank r has in each microbatch: ranks differ, as packed sequences do in their target tokens.
int64_t rows_of_rank(int rank) { return 1 + 2 * rank; }

torch::Tensor rows_of(int rank, int microbatch) {
  return batch(static_cast<uint64_t>(10 * rank + microbatch), rows_of_rank(rank));
}

torch::Tensor sum_loss(BlockModel& model, const torch::Tensor& rows) { return model.forward(rows).square().sum(); }

constexpr int kWorld = 3;
constexpr int kMicrobatches = 3;

std::shared_ptr<BlockModel> unsharded_gradients(double factor) {
  const auto plain = make_block_model();
  for (int rank = 0; rank < kWorld; ++rank) {
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      (sum_loss(*plain, rows_of(rank, microbatch)) * factor).backward();
    }
  }
  return plain;
}

void backward_all(const World& world, ShardedBlocks& sharded) {
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    const Microbatch scope(sharded.root, microbatch + 1 == kMicrobatches);
    sum_loss(*sharded.module, rows_of(world.rank, microbatch)).backward();
  }
}

TEST(GradScale, MeanSumAndPerToken) {
  int64_t tokens = 0;
  for (int rank = 0; rank < kWorld; ++rank) tokens += kMicrobatches * rows_of_rank(rank);
  for (const Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    run_ranks(kWorld, [&](const World& world) {
      SCOPED_TRACE(name(strategy));
      ShardOptions options;
      options.strategy = strategy;
      ShardedBlocks sharded = shard_blocks(world, options);
      parameters(*sharded.module);
      const struct {
        GradScale scale;
        double factor;
      } cases[] = {{GradScale::mean(), 1.0 / kWorld},
                   {GradScale::mean(4), 0.25 / kWorld},
                   {GradScale::sum(), 1.0},
                   {GradScale::sum(10), 0.1},
                   {GradScale::per_token(kMicrobatches * rows_of_rank(world.rank)), 1.0 / static_cast<double>(tokens)}};
      for (const auto& c : cases) {
        sharded.root.set_gradient_scale(c.scale);
        backward_all(world, sharded);
        expect_same_gradients(*sharded.module, *unsharded_gradients(c.factor), 2e-5 * std::max(1.0, 10 * c.factor));
        zero_grad(*sharded.module);
      }
    });
  }
}

TEST(GradScale, HybridsScaleByAllRanks) {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridOptim}) {
    run_ranks(4, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      ShardedBlocks sharded = shard_blocks(Mesh(world, {{"replicate", 2}, {"shard", 2}}), options);
      parameters(*sharded.module);
      testing::loss_of(*sharded.module, share_of(world, batch(5))).backward();
      const auto plain = make_block_model();
      testing::loss_of(*plain, batch(5)).backward();
      expect_same_gradients(*sharded.module, *plain);
    });
  }
}

TEST(GradScale, NonsenseIsRefused) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    EXPECT_THAT(error_of([&] { sharded.root.set_gradient_scale(GradScale::sum(0)); }), HasSubstr("divisor: got 0"));
    EXPECT_THAT(error_of([&] { sharded.root.set_gradient_scale(GradScale::per_token(-1)); }), HasSubstr("got -1"));
    EXPECT_THAT(error_of([&] { sharded.root.set_gradient_scale(GradScale::per_token(0)); }),
                HasSubstr("no rank has a token"));
  });
}

// Values that bf16 holds exactly, so that the sum of gradients says in which dtype it was made: 256 + 1 + 1 is 256 in
// bf16.
struct Weight : torch::nn::Module {
  Weight() { weight = register_parameter("weight", torch::zeros({16})); }
  torch::Tensor weight;
};

void expect_gradient(Weight& module, float value) {
  for (const torch::Tensor& leaf : parameters(module)) {
    EXPECT_TRUE(torch::equal(leaf.grad(), torch::full_like(leaf, value))) << leaf.grad();
  }
}

TEST(GradScale, MicrobatchesAddUpInFp32WhateverTravels) {
  const struct {
    Strategy strategy;
    bool no_sync;
    std::optional<at::ScalarType> accumulate;
    float expected;                                                      // of 256, 1 and 1 from each of two ranks
  } cases[] = {{Strategy::kOptimGradsParams, false, std::nullopt, 516},  // 512 + 2 + 2 in the fp32 main grad
               {Strategy::kOptim, false, std::nullopt, 516},             // 258 in fp32 before it travels
               {Strategy::kOptimGradsParams, true, std::nullopt, 516},
               {Strategy::kOptimGradsParams, true, at::kBFloat16, 512}};
  for (const auto& c : cases) {
    run_ranks(2, [&](const World& world) {
      SCOPED_TRACE(c10::str(name(c.strategy), c.no_sync ? ", no_sync" : "", c.accumulate ? ", bf16 sums" : ""));
      Weight module;
      ShardOptions options;
      options.strategy = c.strategy;
      options.precision.reduce = at::kBFloat16;
      options.precision.accumulate = c.accumulate;
      Unit root = fully_shard(module, Mesh::shard(world), options);
      root.set_gradient_scale(GradScale::sum());
      parameters(module);
      for (const float slope : {256.0F, 1.0F}) {
        const Microbatch scope(root, false);
        std::optional<NoSync> quiet;
        if (c.no_sync) quiet.emplace(root);
        (module.weight * slope).sum().backward();
      }
      const Microbatch scope(root, true);
      module.weight.sum().backward();
      expect_gradient(module, c.expected);
    });
  }
}

// Partial sums of a shard group wait in fp32 too, and travel between replicas in the reduce dtype.
TEST(GradScale, ReplicasMeetWhenTheyAreTold) {
  run_ranks(4, [](const World& world) {
    Weight module;
    ShardOptions options;
    options.strategy = Strategy::kHybrid;
    options.precision.reduce = at::kBFloat16;
    Unit root = fully_shard(module, Mesh(world, {{"replicate", 2}, {"shard", 2}}), options);
    root.set_gradient_scale(GradScale::sum());
    const auto leaves = parameters(module);
    root.set_requires_all_reduce(false);
    (module.weight * 256).sum().backward();
    for (const torch::Tensor& leaf : leaves) EXPECT_FALSE(leaf.grad().defined());
    root.set_requires_all_reduce(true);
    module.weight.sum().backward();
    // 512 + 2 in the shard group, 514 is 512 or 516 on the wire: to even, 512; twice.
    expect_gradient(module, 1024);
    zero_grad(module);
    module.weight.sum().backward();
    expect_gradient(module, 4);
  });
}

}  // namespace
}  // namespace fsdp::grad_scale_test
