// Unit::set_all_reduce_hook: what the hook makes of each sum over the ranks is what leaves have as gradient.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::all_reduce_hook_test {
namespace {

using testing::batch;
using testing::BlockModel;
using testing::expect_same_gradients;
using testing::expect_same_weights;
using testing::loss_of;
using testing::make_block_model;
using testing::run_ranks;
using testing::ShardedBlocks;
using testing::share_of;

constexpr Strategy kOneAxis[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                                 Strategy::kOptimGradsParams};
// Gradients are looked at without an optimizer: that is meant.
template <class MeshOrWorld>
ShardedBlocks shard_blocks(const MeshOrWorld& where, const ShardOptions& options) {
  ShardedBlocks sharded = testing::shard_blocks(where, options);
  parameters(*sharded.module);
  return sharded;
}

constexpr int64_t kUnits = 4;  // the root and three blocks
constexpr double kBound = 0.003;

// Not linear: a hook that saw the sum of two backwards would leave something else than the sum of what it makes of
// each.
void bound(const torch::Tensor& sum) { sum.clamp_(-kBound, kBound); }

// Adds to the gradients of `model` what the bound leaves of those of `loss`.
void backward_bounded(BlockModel& model, const torch::Tensor& loss) {
  std::vector<torch::Tensor> before;
  for (torch::Tensor& weight : model.parameters()) {
    before.push_back(weight.grad());
    weight.mutable_grad().reset();
  }
  loss.backward();
  const auto weights = model.parameters();
  for (size_t i = 0; i < weights.size(); ++i) {
    bound(weights[i].grad());
    if (before[i].defined()) weights[i].grad().add_(before[i]);
  }
}

void for_one_axis(const std::function<void(const World&, const ShardOptions&)>& body) {
  for (const Strategy strategy : kOneAxis) {
    for (const int size : {1, 2, 3}) {
      SCOPED_TRACE(c10::str(name(strategy), ", world ", size));
      ShardOptions options;
      options.strategy = strategy;
      run_ranks(size, [&](const World& world) { body(world, options); });
    }
  }
}

TEST(AllReduceHook, MakesTheGradientOutOfEachSumAlone) {
  for_one_axis([](const World& world, const ShardOptions& options) {
    ShardedBlocks sharded = shard_blocks(world, options);
    const auto twin = make_block_model();
    int64_t calls = 0;
    sharded.root.set_all_reduce_hook([&](const torch::Tensor& sum) {
      ++calls;
      EXPECT_EQ(sum.dim(), 1);
      bound(sum);
    });
    for (uint64_t seed = 1; seed <= 3; ++seed) {  // gradients add up
      loss_of(*sharded.module, share_of(world, batch(seed))).backward();
      backward_bounded(*twin, loss_of(*twin, batch(seed)));
      EXPECT_EQ(calls, kUnits * static_cast<int64_t>(seed));
      expect_same_gradients(*sharded.module, *twin);
    }
    sharded.root.set_all_reduce_hook({});
    zero_grad(*sharded.module);
    twin->zero_grad();
    loss_of(*sharded.module, share_of(world, batch(9))).backward();
    loss_of(*twin, batch(9)).backward();
    expect_same_gradients(*sharded.module, *twin);
  });
}

TEST(AllReduceHook, HoldsForTheUnitsBelowTheOneItWasSetOn) {
  for_one_axis([](const World& world, const ShardOptions& options) {
    ShardedBlocks sharded = shard_blocks(world, options);
    sharded.blocks[1].set_all_reduce_hook([](const torch::Tensor& sum) { sum.mul_(3); });
    const auto twin = make_block_model();
    loss_of(*sharded.module, share_of(world, batch(1))).backward();
    loss_of(*twin, batch(1)).backward();
    for (torch::Tensor& weight : twin->block(1).parameters()) weight.grad().mul_(3);
    expect_same_gradients(*sharded.module, *twin);
  });
}

// Strategies that reduce once a step call it once a step.
TEST(AllReduceHook, SeesWhatMicrobatchesReduce) {
  for_one_axis([](const World& world, const ShardOptions& options) {
    ShardedBlocks sharded = shard_blocks(world, options);
    int64_t calls = 0;
    sharded.root.set_all_reduce_hook([&](const torch::Tensor& sum) {
      ++calls;
      sum.mul_(2);
    });
    const auto twin = make_block_model();
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      const Microbatch scope(sharded.root, seed == 2);
      loss_of(*sharded.module, share_of(world, batch(seed))).backward();
      (2 * loss_of(*twin, batch(seed))).backward();
    }
    const bool once = options.strategy == Strategy::kNoShard || options.strategy == Strategy::kOptim;
    EXPECT_EQ(calls, once ? kUnits : 2 * kUnits);
    expect_same_gradients(*sharded.module, *twin);
  });
}

TEST(AllReduceHook, SeesSumsOverTheReplicasAndNoPartialOnes) {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    SCOPED_TRACE(name(strategy));
    run_ranks(4, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      ShardedBlocks sharded = shard_blocks(Mesh(world, {{"replicate", 2}, {"shard", 2}}), options);
      int64_t calls = 0;
      sharded.root.set_all_reduce_hook([&](const torch::Tensor& sum) {
        ++calls;
        bound(sum);
      });
      const auto twin = make_block_model();
      for (uint64_t step = 1; step <= 2; ++step) {  // without zero_grad() between
        {
          const Microbatch scope(sharded.root, false);
          loss_of(*sharded.module, share_of(world, batch(step))).backward();
        }
        EXPECT_EQ(calls, kUnits * static_cast<int64_t>(step - 1));
        loss_of(*sharded.module, share_of(world, batch(step))).backward();
        EXPECT_EQ(calls, kUnits * static_cast<int64_t>(step));
        backward_bounded(*twin, 2 * loss_of(*twin, batch(step)));
      }
      expect_same_gradients(*sharded.module, *twin);
    });
  }
}

TEST(AllReduceHook, ReplicasEndWithTheBoundedSum) {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    SCOPED_TRACE(name(strategy));
    run_ranks(4, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      ShardedBlocks sharded = shard_blocks(Mesh(world, {{"replicate", 2}, {"shard", 2}}), options);
      sharded.root.set_all_reduce_hook(bound);
      const auto twin = make_block_model();
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        loss_of(*sharded.module, share_of(world, batch(seed))).backward();
        backward_bounded(*twin, loss_of(*twin, batch(seed)));
      }
      expect_same_gradients(*sharded.module, *twin);
    });
  }
}

TEST(AllReduceHook, OptimizersInTheBackwardUseWhatItMade) {
  for_one_axis([](const World& world, const ShardOptions& options) {
    ShardedBlocks sharded = shard_blocks(world, options);
    sharded.root.set_all_reduce_hook(bound);
    SGD optimizer(parameters(*sharded.module), {.lr = 0.5});
    optimizer.step_in_backward();
    const auto twin = make_block_model();
    torch::optim::SGD twins(twin->parameters(), 0.5);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      loss_of(*sharded.module, share_of(world, batch(seed))).backward();
      twin->zero_grad();
      backward_bounded(*twin, loss_of(*twin, batch(seed)));
      twins.step();
    }
    expect_same_weights(*sharded.module, *twin);
  });
}

TEST(AllReduceHook, WhatItThrowsBackwardThrowsAndTheNextStepIsRight) {
  for_one_axis([](const World& world, const ShardOptions& options) {
    ShardedBlocks sharded = shard_blocks(world, options);
    sharded.root.set_all_reduce_hook([](const torch::Tensor&) { throw std::runtime_error("no such gradient"); });
    EXPECT_THROW(loss_of(*sharded.module, share_of(world, batch(1))).backward(), std::runtime_error);
    sharded.root.set_all_reduce_hook(bound);
    zero_grad(*sharded.module);
    const auto twin = make_block_model();
    loss_of(*sharded.module, share_of(world, batch(2))).backward();
    backward_bounded(*twin, loss_of(*twin, batch(2)));
    expect_same_gradients(*sharded.module, *twin);
  });
}

}  // namespace
}  // namespace fsdp::all_reduce_hook_test
