// Schedules, allocators and a slow network change time and memory, never a bit of a result.
#include <gtest/gtest.h>

#include <thread>

#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::schedules_test {
namespace {

using schedule::BackwardPrefetch;
using schedule::CommThreads;
using schedule::ReleaseOrder;
using schedule::Schedule;
using std::chrono::microseconds;
using testing::batch;
using testing::loss_of;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

constexpr int kBlocks = 4;

struct Variant {
  std::string name;
  Schedule schedule;
  AllocatorOptions allocator;
};

Schedule with(Schedule schedule, ReleaseOrder release, CommThreads threads) {
  schedule.release = release;
  schedule.threads = threads;
  return schedule;
}

std::vector<Variant> variants() {
  const auto fsdp1 = [](bool forward, BackwardPrefetch backward, bool limit) {
    return Schedule::fsdp1(forward, backward, limit);
  };
  return {{"default", {}, {}},
          {"static_order(3)", Schedule::static_order(3), {}},
          {"static_order(2, few bytes)", Schedule::static_order(2, 600), {}},
          {"delayed_release(2)", Schedule::delayed_release(2), AllocatorOptions::traced()},
          {"on_demand", Schedule::on_demand(), AllocatorOptions::direct()},
          {"fsdp1 pre", fsdp1(true, BackwardPrefetch::kPre, true), AllocatorOptions::storage_resize()},
          {"fsdp1 post", fsdp1(false, BackwardPrefetch::kPost, true), AllocatorOptions::rotary(2)},
          {"fsdp1 none", fsdp1(false, BackwardPrefetch::kNone, false), AllocatorOptions::fixed_pool(1 << 18)},
          {"reshard first", with({}, ReleaseOrder::kReshardFirst, CommThreads::kSeparate), {}},
          {"unified", with({}, ReleaseOrder::kReshardFirst, CommThreads::kUnified), AllocatorOptions::traced()}};
}

struct Curve {
  std::vector<float> losses;
  std::vector<torch::Tensor> weights;
  Counters counters;  // of the last step
  int64_t late_allocations = 0;
};

struct Delays {
  microseconds forward{0};
  microseconds optimizer{0};
};

Curve train(const World& world, const ShardOptions& options, const Delays& delays = {}) {
  ShardedBlocks sharded = shard_blocks(world, options, kBlocks);
  AdamW optimizer(parameters(*sharded.module), {.lr = 0.01});
  Curve curve;
  for (int step = 0; step < 4; ++step) {
    const int64_t before = sharded.root.counters().buffer_allocations;
    sharded.root.reset_counters();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const Microbatch scope(sharded.root, microbatch == 1);
      const torch::Tensor loss =
          loss_of(*sharded.module, share_of(world, batch(static_cast<uint64_t>(2 * step + microbatch))));
      std::this_thread::sleep_for(delays.forward);
      loss.backward();
      curve.losses.push_back(loss.item<float>());
    }
    std::this_thread::sleep_for(delays.optimizer);
    optimizer.step();
    zero_grad(*sharded.module);
    curve.counters = sharded.root.counters();
    curve.late_allocations = curve.counters.buffer_allocations - before;
  }
  for (const torch::Tensor& leaf : parameters(*sharded.module)) curve.weights.push_back(leaf.detach().clone());
  return curve;
}

void expect_same_bits(const Curve& a, const Curve& b) {
  EXPECT_EQ(a.losses, b.losses);
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(torch::equal(a.weights[i], b.weights[i])) << i;
}

TEST(Schedules, NoneChangesABit) {
  std::vector<Curve> reference(3);
  for (const Variant& variant : variants()) {
    run_ranks(3, [&](const World& world) {
      SCOPED_TRACE(variant.name);
      ShardOptions options;
      options.schedule = variant.schedule;
      options.allocator = variant.allocator;
      const Curve curve = train(world, options);
      Curve& first = reference[static_cast<size_t>(world.rank)];
      if (first.losses.empty()) first = curve;
      expect_same_bits(curve, first);
      EXPECT_EQ(curve.counters.resident_unsharded_bytes, 0);
      const bool keeps = variant.allocator.kind != AllocatorKind::kDirect &&
                         variant.allocator.kind != AllocatorKind::kStorageResize && variant.allocator.slabs == 0;
      EXPECT_EQ(curve.late_allocations * (keeps ? 1 : 0), 0);
    });
  }
}

TEST(Schedules, HybridsAgreeToTheLastBit) {
  std::vector<std::vector<float>> losses;
  for (const Strategy strategy : {Strategy::kHybrid, Strategy::kHybridZero2, Strategy::kHybridOptim}) {
    std::vector<float> mine;
    run_ranks(4, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      options.replica_reduce = ReduceTiming::kEveryMicrobatch;
      ShardedBlocks sharded = shard_blocks(Mesh(world, {{"replicate", 2}, {"shard", 2}}), options, kBlocks);
      SGD optimizer(parameters(*sharded.module), {.lr = 0.05});
      for (uint64_t step = 0; step < 4; ++step) {
        const torch::Tensor loss = loss_of(*sharded.module, share_of(world, batch(step)));
        loss.backward();
        optimizer.step();
        zero_grad(*sharded.module);
        if (world.rank == 0) mine.push_back(loss.item<float>());
      }
    });
    losses.push_back(mine);
  }
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_EQ(losses[2], losses[0]);
}

// Every rank is late somewhere else: before gathers, before reductions, in the forward, before the optimizer.
TEST(Schedules, DelaysChangeNoBit) {
  std::vector<Curve> undisturbed(4);
  run_ranks(4, [&](const World& world) { undisturbed[static_cast<size_t>(world.rank)] = train(world, {}); });
  for (int shift = 0; shift < 4; ++shift) {
    const auto is_late = [&](int rank, int where) { return (rank + shift) % 4 == where; };
    const auto transfers = [&](int rank) {
      comm::ConnectOptions options;
      if (is_late(rank, 0)) options.delays.gather = microseconds(2000);
      if (is_late(rank, 1)) options.delays.reduce = microseconds(2000);
      return options;
    };
    testing::run_ranks_with(4, transfers, [&](const World& world) {
      Delays delays;
      if (is_late(world.rank, 2)) delays.forward = microseconds(3000);
      if (is_late(world.rank, 3)) delays.optimizer = microseconds(5000);
      SCOPED_TRACE(c10::str("shift ", shift, ", rank ", world.rank));
      expect_same_bits(train(world, {}, delays), undisturbed[static_cast<size_t>(world.rank)]);
    });
  }
}

// Bytes gathered at once: the schedules differ as their names say.
TEST(Schedules, HoldAsMuchAsTheyPromise) {
  const auto peak_of = [](const Schedule& schedule) {
    int64_t peak = 0;
    run_ranks(2, [&](const World& world) {
      ShardOptions options;
      options.schedule = schedule;
      ShardedBlocks sharded = shard_blocks(world, options, 8);
      AdamW optimizer(parameters(*sharded.module), {.lr = 0.01});
      for (int step = 0; step < 3; ++step) {
        sharded.root.reset_counters();
        loss_of(*sharded.module, share_of(world, batch(1))).backward();
        optimizer.step();
        zero_grad(*sharded.module);
      }
      if (world.rank == 0) peak = sharded.root.counters().peak_unsharded_bytes;
    });
    return peak;
  };
  const int64_t root = testing::root_shard_numel(2) * 2 * 4;
  const int64_t block = testing::block_shard_numel(2) * 2 * 4;
  EXPECT_EQ(peak_of(Schedule::on_demand()), root + block);
  EXPECT_EQ(peak_of(Schedule::static_order(1)), root + 2 * block);
  EXPECT_EQ(peak_of(Schedule::static_order(3)), root + 4 * block);
  EXPECT_EQ(peak_of(Schedule::static_order(3, 2 * block)), root + 3 * block);
  EXPECT_EQ(peak_of(Schedule::delayed_release(2)), root + 3 * block);
}

TEST(Schedules, OneWorldHasOne) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks first = shard_blocks(world);
    ShardOptions options;
    options.schedule = Schedule::on_demand();
    const std::string text = testing::error_of([&] { shard_blocks(world, options); });
    EXPECT_NE(text.find("got on_demand, expected static_order(1, 1)"), std::string::npos) << text;
    options.schedule = {};
    options.allocator = AllocatorOptions::traced();
    EXPECT_NE(testing::error_of([&] { shard_blocks(world, options); }).find("allocator"), std::string::npos);
    options.allocator = {};
    options.schedule.forward_depth = -1;
    EXPECT_NE(testing::error_of([&] { shard_blocks(world, options); }).find("forward_depth: got -1"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace fsdp::schedules_test
