// One ZeRO-3 step of a root with three blocks, event by event: the table that docs/one_step.md describes in words.
#include <gtest/gtest.h>

#include "fsdp/base/trace.h"
#include "fsdp/fsdp.h"
#include "tests/promise/models/block_model.h"
#include "tests/support/ranks.h"

namespace fsdp::step_order_test {
namespace {

using testing::batch;
using testing::loss_of;
using testing::run_ranks;
using testing::shard_blocks;
using testing::ShardedBlocks;
using testing::share_of;

using Table = std::vector<std::string>;  // "event unit", by the end of the event

// From the second step on: the order is known, so that each unit's gather is started before the unit in front computes.
const Table kForward = {
    "unshard root",         "wait gather root",  // inlet reads the root's weights
    "unshard layers.0",                          // prefetch
    "wait gather layers.0", "unshard layers.1", "reshard layers.0",     "wait gather layers.1",
    "unshard layers.2",     "reshard layers.1", "wait gather layers.2",  // outlet: the root is an unsharded ancestor,
                                                                         // nothing happens
};
const Table kBackward = {
    // outlet and layers.2: both are unsharded still
    "unshard layers.1",                           // prefetch
    "start reduce layers.2", "reshard layers.2",  // its last gradient arrived
    "wait gather layers.1",  "unshard layers.0",     "start reduce layers.1", "reshard layers.1",  //
    "wait gather layers.0",  "wait reduce layers.2",                      // two are on their way at most
    "start reduce layers.0", "reshard layers.0",                          //
    "start reduce root",     "reshard root",                              // inlet's gradients
    "wait reduce layers.1",  "wait reduce layers.0", "wait reduce root",  // end of backward
};

Table events_of(const TraceCollector& trace) {
  Table table;
  for (const TraceEvent& event : trace.events()) {
    const bool is_compute = event.name == "forward" || event.name == "backward";
    if (event.thread.empty() && !is_compute) table.push_back(event.name + " " + event.unit);
  }
  return table;
}

void optimize(ShardedBlocks& sharded, AdamW& optimizer) {
  optimizer.step();
  zero_grad(*sharded.module);
}

TEST(StepOrder, IsTheDocumentedTable) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    AdamW optimizer(parameters(*sharded.module), {});
    const torch::Tensor rows = share_of(world, batch(1));
    loss_of(*sharded.module, rows).backward();
    optimize(sharded, optimizer);
    for (int step = 2; step < 4; ++step) {
      TraceCollector trace;
      const torch::Tensor loss = loss_of(*sharded.module, rows);
      EXPECT_EQ(events_of(trace), kForward) << "step " << step;
      trace.clear();
      loss.backward();
      EXPECT_EQ(events_of(trace), kBackward) << "step " << step;
      trace.clear();
      optimize(sharded, optimizer);
      EXPECT_EQ(events_of(trace), Table{}) << "step " << step;
    }
  });
}

// The first step knows no order: every gather is waited for at once.
const Table kFirstForward = {
    "unshard root",     "wait gather root",                              //
    "unshard layers.0", "wait gather layers.0",                          //
    "reshard layers.0", "unshard layers.1",     "wait gather layers.1",  //
    "reshard layers.1", "unshard layers.2",     "wait gather layers.2",
};

TEST(StepOrder, TheFirstForwardPrefetchesNothing) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    TraceCollector trace;
    const torch::Tensor loss = loss_of(*sharded.module, share_of(world, batch(1)));
    EXPECT_EQ(events_of(trace), kFirstForward);
  });
}

TEST(StepOrder, EventsDoNotRunBackwards) {
  run_ranks(2, [](const World& world) {
    ShardedBlocks sharded = shard_blocks(world);
    TraceCollector trace;
    loss_of(*sharded.module, share_of(world, batch(1))).backward();
    auto last = std::chrono::steady_clock::time_point::min();
    for (const TraceEvent& event : trace.events()) {
      EXPECT_LE(event.begin, event.end);
      EXPECT_LE(last, event.end);
      last = event.end;
    }
  });
}

// ZeRO-0 gathers nothing; ZeRO-1 once for a step; ZeRO-2 once for a microbatch; ZeRO-3 in forward and backward.
TEST(StepOrder, GathersFollowTheStrategy) {
  const std::pair<Strategy, std::array<int64_t, 2>> expected[] = {{Strategy::kNoShard, {0, 0}},
                                                                  {Strategy::kOptim, {4, 0}},
                                                                  {Strategy::kOptimGrads, {4, 4}},
                                                                  {Strategy::kOptimGradsParams, {6, 6}}};
  for (const auto& [strategy, gathers] : expected) {
    run_ranks(2, [&](const World& world) {
      ShardOptions options;
      options.strategy = strategy;
      ShardedBlocks sharded = shard_blocks(world, options);
      AdamW optimizer(parameters(*sharded.module), {});
      for (int step = 0; step < 3; ++step) {
        for (const int64_t wanted : gathers) {
          sharded.root.reset_counters();
          loss_of(*sharded.module, share_of(world, batch(1))).backward();
          EXPECT_EQ(sharded.root.counters().gathers, wanted) << name(strategy) << ", step " << step;
        }
        optimize(sharded, optimizer);
      }
    });
  }
}

}  // namespace
}  // namespace fsdp::step_order_test
