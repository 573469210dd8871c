// Gathers, reductions and bytes of a step are arithmetic for every strategy, and so is what rests on a rank.
#include <gtest/gtest.h>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::traffic_test {
namespace {

using testing::batch;
using testing::block_shard_numel;
using testing::loss_of;
using testing::root_shard_numel;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

constexpr int kBlocks = 6;
constexpr int64_t kUnits = kBlocks + 1;

// Bytes of all parameters when they are cut into `shards`, padding included.
int64_t model_bytes(int shards) {
  return (root_shard_numel(shards) + kBlocks * block_shard_numel(shards)) * shards * 4;
}

// What one of n ranks receives when `bytes` are gathered or reduce-scattered.
int64_t received(int64_t bytes, int n) { return bytes / n * (n - 1); }

void train_step(ShardedBlocks& sharded, const World& world, SGD& optimizer, int num_microbatches) {
  for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) {
    const Microbatch scope(sharded.root, microbatch + 1 == num_microbatches);
    loss_of(*sharded.module, share_of(world, batch(1))).backward();
  }
  optimizer.step();
  zero_grad(*sharded.module);
}

struct Case {
  Strategy strategy;
  int replicas;
  int shards;
};

// Of a steady step, which is the third.
Counters count(const World& world, const Case& c, int num_microbatches, ShardOptions options = {}) {
  options.strategy = c.strategy;
  ShardedBlocks sharded = shard_blocks(Mesh(world, {{"replicate", c.replicas}, {"shard", c.shards}}), options, kBlocks);
  SGD optimizer(parameters(*sharded.module), {.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    sharded.root.reset_counters();
    train_step(sharded, world, optimizer, num_microbatches);
  }
  return sharded.root.counters();
}

void for_each_microbatching(const Case& c, const std::function<void(const Counters&, int64_t)>& check) {
  for (const int num_microbatches : {1, 3}) {
    run_ranks(c.replicas * c.shards, [&](const World& world) {
      SCOPED_TRACE(c10::str(name(c.strategy), " ", c.replicas, "x", c.shards, ", microbatches ", num_microbatches));
      check(count(world, c, num_microbatches), num_microbatches);
    });
  }
}

TEST(Traffic, NoShardIsDataParallel) {
  for (const Case& c : {Case{Strategy::kNoShard, 1, 3}, Case{Strategy::kNoShard, 2, 2}}) {
    for_each_microbatching(c, [&](const Counters& counters, int64_t) {
      const int world = c.replicas * c.shards;
      EXPECT_EQ(counters.gathers, 0);
      EXPECT_EQ(counters.reduces, kUnits);
      EXPECT_EQ(counters.reduce_bytes, 2 * received(model_bytes(world), world));
    });
  }
}

TEST(Traffic, Zero1And2MoveWhatDataParallelMoves) {
  for_each_microbatching({Strategy::kOptim, 1, 4}, [](const Counters& counters, int64_t) {
    EXPECT_EQ(counters.gathers, kUnits);
    EXPECT_EQ(counters.reduces, kUnits);
    EXPECT_EQ(counters.gather_bytes + counters.reduce_bytes, 2 * received(model_bytes(4), 4));
  });
  for_each_microbatching({Strategy::kOptimGrads, 1, 4}, [](const Counters& counters, int64_t microbatches) {
    EXPECT_EQ(counters.gathers, microbatches * kUnits);
    EXPECT_EQ(counters.reduces, microbatches * kUnits);
    EXPECT_EQ(counters.gather_bytes + counters.reduce_bytes, microbatches * 2 * received(model_bytes(4), 4));
  });
}

// M(2U - k) gathers; the root and the last block are unsharded still when the backward starts.
TEST(Traffic, Zero3GathersOnceMoreForTheBackward) {
  for_each_microbatching({Strategy::kOptimGradsParams, 1, 2}, [](const Counters& counters, int64_t microbatches) {
    EXPECT_EQ(counters.gathers, microbatches * (2 * kUnits - 2));
    EXPECT_EQ(counters.reduces, microbatches * kUnits);
    const int64_t again = (kBlocks - 1) * block_shard_numel(2) * 2 * 4;
    EXPECT_EQ(counters.gather_bytes, microbatches * received(model_bytes(2) + again, 2));
    EXPECT_EQ(counters.reduce_bytes, microbatches * received(model_bytes(2), 2));
  });
}

// 1.5 times the traffic of data parallelism, as the units still unsharded at the start of backward become negligible.
TEST(Traffic, Zero3TendsToOneAndAHalf) {
  run_ranks(2, [](const World& world) {
    constexpr int kMany = 60;
    ShardedBlocks sharded = shard_blocks(world, {}, kMany);
    SGD optimizer(parameters(*sharded.module), {.lr = 0.01});
    for (int step = 0; step < 3; ++step) {
      sharded.root.reset_counters();
      train_step(sharded, world, optimizer, 1);
    }
    const Counters counters = sharded.root.counters();
    const int64_t model = (root_shard_numel(2) + kMany * block_shard_numel(2)) * 2 * 4;
    const double ratio = static_cast<double>(counters.gather_bytes + counters.reduce_bytes) /
                         static_cast<double>(2 * received(model, 2));
    EXPECT_GT(ratio, 1.48);
    EXPECT_LT(ratio, 1.5);
  });
}

// Gathered weights and gradient buffers that a step holds at most, beside what rests.
TEST(Traffic, PeaksOfEveryStrategy) {
  const struct {
    Case where;
    bool gathers_all;
    bool gathers_none;
  } cases[] = {{{Strategy::kNoShard, 1, 4}, false, true},     {{Strategy::kOptim, 1, 4}, false, true},
               {{Strategy::kOptimGrads, 1, 4}, true, false},  {{Strategy::kOptimGradsParams, 1, 4}, false, false},
               {{Strategy::kHybrid, 2, 2}, false, false},     {{Strategy::kHybridZero2, 2, 2}, true, false},
               {{Strategy::kHybridOptim, 2, 2}, false, false}};
  const int64_t root = root_shard_numel(4) * 4 * 4;
  const int64_t block = block_shard_numel(4) * 4 * 4;
  for (const auto& c : cases) {
    run_ranks(4, [&](const World& world) {
      SCOPED_TRACE(name(c.where.strategy));
      const Counters counters = count(world, c.where, 1);
      const int64_t few = root + 2 * block;
      EXPECT_EQ(counters.peak_unsharded_bytes, c.gathers_none ? 0 : c.gathers_all ? root + kBlocks * block : few);
      EXPECT_LE(counters.peak_reduce_bytes, 2 * block + root);
      EXPECT_GE(counters.peak_reduce_bytes, block);
    });
  }
}

// The replica stage moves this rank's shard of the gradients: all-reduced once per step.
TEST(Traffic, HybridAddsAnAllReduceOfTheShard) {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2}) {
    for_each_microbatching({strategy, 2, 2}, [&](const Counters& counters, int64_t microbatches) {
      const int64_t whole = model_bytes(4);  // shards can be cut once more, between the replicas
      const bool zero3 = strategy == Strategy::kHybrid;
      EXPECT_EQ(counters.gathers, microbatches * (zero3 ? 2 * kUnits - 2 : kUnits));
      const int64_t again = zero3 ? (kBlocks - 1) * block_shard_numel(4) * 4 * 4 : 0;
      EXPECT_EQ(counters.gather_bytes, microbatches * received(whole + again, 2));
      EXPECT_EQ(counters.reduce_bytes, microbatches * received(whole, 2) + 2 * received(whole / 2, 2));
    });
  }
}

// Half of that all-reduce goes to the gradients, the other half to the weights.
TEST(Traffic, HybridOptimReducesAndGathersOverReplicas) {
  for_each_microbatching({Strategy::kHybridOptim, 2, 2}, [](const Counters& counters, int64_t microbatches) {
    const int64_t whole = model_bytes(4);
    const int64_t again = (kBlocks - 1) * block_shard_numel(4) * 4 * 4;
    EXPECT_EQ(counters.gather_bytes, microbatches * received(whole + again, 2) + received(whole / 2, 2));
    EXPECT_EQ(counters.reduce_bytes, microbatches * received(whole, 2) + received(whole / 2, 2));
  });
}

TEST(Traffic, ReplicasMayMeetInEveryMicrobatch) {
  run_ranks(4, [](const World& world) {
    ShardOptions options;
    options.replica_reduce = ReduceTiming::kEveryMicrobatch;
    const Counters counters = count(world, {Strategy::kHybrid, 2, 2}, 3, options);
    const int64_t whole = model_bytes(4);
    EXPECT_EQ(counters.reduce_bytes, 3 * (received(whole, 2) + 2 * received(whole / 2, 2)));
  });
}

// Between forward and backward weights rest in pairs, so that the backward's gathers stay inside these.
TEST(Traffic, ASmallerForwardGroupShortensTheBackwardsGathers) {
  run_ranks(4, [](const World& world) {
    ShardOptions options;
    options.reshard_after_forward = 2;
    const Counters counters = count(world, {Strategy::kOptimGradsParams, 1, 4}, 1, options);
    EXPECT_EQ(counters.gathers, 2 * kUnits - 2);
    const int64_t again = (kBlocks - 1) * block_shard_numel(4) * 4 * 4;
    EXPECT_EQ(counters.gather_bytes, received(model_bytes(4), 4) + received(again, 2));
    // Halves of the blocks behind, and what a step holds anyway.
    const int64_t block = block_shard_numel(4) * 4 * 4;
    EXPECT_LE(counters.peak_unsharded_bytes, root_shard_numel(4) * 4 * 4 + 2 * block + (kBlocks - 1) * block / 2);
    EXPECT_GE(counters.peak_unsharded_bytes, root_shard_numel(4) * 4 * 4 + (kBlocks - 1) * block / 2);
    EXPECT_EQ(counters.resident_unsharded_bytes, 0);
  });
}

// Per rank: the main weight over all ranks that share it; a copy of the shard group's where the replicas share it too.
TEST(Traffic, RestingBytesOfHybrids) {
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    for (const bool bf16 : {false, true}) {
      run_ranks(4, [&](const World& world) {
        SCOPED_TRACE(name(strategy));
        ShardOptions options;
        options.strategy = strategy;
        if (bf16) options.precision = Precision::bf16();
        const Mesh mesh(world, {{"replicate", 2}, {"shard", 2}});
        ShardedBlocks sharded = shard_blocks(mesh, options, kBlocks);
        AdamW optimizer(parameters(*sharded.module), {});
        const torch::Tensor rows = share_of(world, batch(1));
        loss_of(*sharded.module, bf16 ? rows.to(torch::kBFloat16) : rows).backward();
        optimizer.step();
        const int align = bf16 ? 8 : 4;
        const int64_t quarter = root_shard_numel(4, align) + kBlocks * block_shard_numel(4, align);
        const bool shared = strategy == Strategy::kHybridOptim;
        const RestingBytes bytes = sharded.root.resting_bytes();
        EXPECT_EQ(bytes.main_weight, (shared ? 1 : 2) * quarter * 4);
        EXPECT_EQ(bytes.main_grad, bytes.main_weight);
        EXPECT_EQ(optimizer.state_bytes(), 2 * bytes.main_weight);
        EXPECT_EQ(bytes.model_weight, bf16 ? 2 * quarter * 2 : shared ? 2 * quarter * 4 : 0);
      });
    }
  }
}

}  // namespace
}  // namespace fsdp::traffic_test
