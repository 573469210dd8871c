// Steps that can be computed by hand, and what holds for all.
#include "plan/time/simulation.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/plan/time/chain.h"

namespace fsdp::plan::time::simulation_test {
namespace {

using testing::Chain;
using testing::plain_hardware;

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// The gathers that a step waits for are unit0's in the forward and nothing else; unit0's reduction comes last.
TEST(Simulation, TwoUnitsByHand) {
  const Chain chain{{3, 3}, {6, 6}, {2, 2}, {4, 4}, {}};
  const StepTime time = chain.predict();
  EXPECT_DOUBLE_EQ(time.step_ms, 2 + 3 + 3 + 6 + 6 + 4);
  EXPECT_DOUBLE_EQ(time.exposed_gather_ms, 2);
  EXPECT_DOUBLE_EQ(time.exposed_reduce_ms, 4);
  EXPECT_DOUBLE_EQ(time.units[0].exposed_gather_ms, 2);
  EXPECT_DOUBLE_EQ(time.units[1].exposed_reduce_ms, 0);
  EXPECT_DOUBLE_EQ(time.gather_ms, 3 * 2);
  EXPECT_DOUBLE_EQ(time.reduce_ms, 2 * 4);
}

// unit0's second gather begins at 8. From 9 to 11 it shares the link with unit1's reduction, and so ends 1 ms later;
// that has then 3 of its 4 ms left, until 14, when unit0's own can begin.
TEST(Simulation, AGatherAndAReductionShareALink) {
  const Chain chain{{3, 3}, {1, 1}, {2, 2}, {4, 4}, {}};
  const StepTime time = chain.predict();
  EXPECT_DOUBLE_EQ(time.step_ms, 18);
  EXPECT_DOUBLE_EQ(time.exposed_gather_ms, 2 + 2);
  EXPECT_DOUBLE_EQ(time.exposed_reduce_ms, 6);
  // One after the other the reduction waits for the gather, which ends in time.
  Hardware queue = plain_hardware();
  queue.sharing = Sharing::kQueue;
  const StepTime in_turn = chain.predict(queue);
  EXPECT_DOUBLE_EQ(in_turn.exposed_gather_ms, 2 + 1);
  EXPECT_DOUBLE_EQ(in_turn.step_ms, 18);
}

// While a transfer runs, computation takes half as long again: unit0's forward has 2 ms of unit1's gather beside it, in
// which 2 / 1.5 of its 3 ms are done.
TEST(Simulation, TransfersSlowComputationDown) {
  const Chain chain{{3, 3}, {0, 0}, {2, 2}, {0, 0}, {}};
  Hardware hardware = plain_hardware();
  hardware.slowdown_by_transfers = 0.5;
  const StepTime time = chain.predict(hardware);
  EXPECT_NEAR(time.slowdown_ms, 2 - 2 / 1.5, 1e-9);
  EXPECT_NEAR(time.compute_ms, 6 + 2 - 2 / 1.5, 1e-9);
}

// Three transfers in a row: the shard group's reduction, and both stages over replicas on another link.
TEST(Simulation, StagesOfAReductionFollowEachOther) {
  StepWork work;
  work.units = {{"unit", -1, 0, 8'000'000}};
  work.passages = {{0, 0, {}, {}, BackwardReads::kWeights, Arrival::kSomeGradients}};
  work.shard_ranks = 2;
  work.replica_ranks = 2;
  work.ranks_per_node = 2;
  work.strategy = Strategy::kHybrid;
  Hardware hardware = plain_hardware();
  hardware.network = {0.5e9, 0};
  // 4 MB within the node at 1 MB/ms, then twice 2 MB of the 4 MB shard at 0.5 MB/ms.
  const StepTime time = predict(work, hardware);
  EXPECT_NEAR(time.exposed_reduce_ms, 4 + 2 * 4, 1e-9);
  work.strategy = Strategy::kHybridOptim;
  EXPECT_NEAR(predict(work, hardware).exposed_reduce_ms, 4 + 4, 1e-9);
}

// Without an order known to be ahead, a host that runs ahead gathers while the GPU still computes with memory that
// another slab holds; a program that computes itself cannot.
TEST(Simulation, AHostThatRunsAheadGathersAsSoonAsMemoryIsFree) {
  Chain chain{{5, 5, 5}, {5, 5, 5}, {2, 2, 2}, {0, 0, 0}, schedule::Schedule::static_order(1)};
  chain.strategy = Strategy::kOptimGrads;
  chain.forward = {5, 1, 5};
  chain.gather = {2, 2, 4};
  // The third unit's gather is posted when the second computes, 1 ms; on a GPU it follows the second's at once.
  EXPECT_DOUBLE_EQ(chain.predict().exposed_gather_ms, 2 + 3);
  EXPECT_DOUBLE_EQ(chain.predict(plain_hardware(Execution::kHostRunsAhead)).exposed_gather_ms, 2);
}

// Forward AG_0 + sum max(C_i, AG_i+1), backward the same from the other end.
RC_GTEST_PROP(SimulationProperty, WithoutReductionsIsTheClosedFormula, ()) {
  const auto count = *rc::gen::inRange<size_t>(2, 12);
  const auto times = [&] { return *rc::gen::container<std::vector<int>>(count, rc::gen::inRange(0, 20)); };
  const auto real = [](const std::vector<int>& values) { return std::vector<double>(values.begin(), values.end()); };
  const Chain chain{real(times()), real(times()), real(times()), std::vector<double>(count, 0), {}};
  double expected = chain.gather[0] + chain.forward[count - 1] + chain.backward[0];
  for (size_t i = 0; i + 1 < count; ++i) {
    expected += std::max(chain.forward[i], chain.gather[i + 1]);
    expected += std::max(chain.backward[i + 1], chain.gather[i]);
  }
  RC_ASSERT(std::abs(chain.predict().step_ms - expected) < 1e-9);
}

Chain random_chain() {
  const auto count = *rc::gen::inRange<size_t>(1, 10);
  const auto times = [&] {
    const auto values = *rc::gen::container<std::vector<int>>(count, rc::gen::inRange(0, 40));
    return std::vector<double>(values.begin(), values.end());
  };
  Chain chain{times(), times(), times(), times(), {}};
  chain.schedule = *rc::gen::element(schedule::Schedule::static_order(1), schedule::Schedule::static_order(3),
                                     schedule::Schedule::delayed_release(2), schedule::Schedule::on_demand(),
                                     schedule::Schedule::fsdp1(false, schedule::BackwardPrefetch::kPost, true));
  chain.schedule.threads = *rc::gen::element(schedule::CommThreads::kSeparate, schedule::CommThreads::kUnified);
  chain.schedule.release =
      *rc::gen::element(schedule::ReleaseOrder::kReduceFirst, schedule::ReleaseOrder::kReshardFirst);
  chain.strategy =
      *rc::gen::element(Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams);
  chain.microbatches = *rc::gen::inRange(1, 4);
  return chain;
}

Hardware random_hardware() {
  Hardware hardware = plain_hardware(*rc::gen::element(Execution::kProgramComputes, Execution::kHostRunsAhead));
  hardware.sharing = *rc::gen::element(Sharing::kEven, Sharing::kQueue);
  hardware.start_us = *rc::gen::element(0.0, 700.0);
  hardware.slowdown_by_transfers = *rc::gen::element(0.0, 0.3);
  return hardware;
}

// By the costs of what the script does, undisturbed.
double alone_ms(const Chain& chain, const Hardware& hardware, Action action) {
  const StepCosts costs = chain.costs(hardware);
  double ms = 0;
  for (const Instruction& instruction : record_step(chain.work())) {
    if (instruction.action != action) continue;
    for (const Transfer& transfer : costs.transfers(instruction)) ms += transfer.alone_ms();
  }
  return ms;
}

RC_GTEST_PROP(SimulationProperty, IsNeverShorterThanComputationOrTransfersAlone, ()) {
  const Chain chain = random_chain();
  const Hardware hardware = random_hardware();
  const StepTime time = chain.predict(hardware);
  const double compute = chain.microbatches * (sum(chain.forward) + sum(chain.backward));
  RC_ASSERT(time.step_ms >= compute + time.optimizer_ms - 1e-9);
  const double gathers = alone_ms(chain, hardware, Action::kStartGather);
  const double reductions = alone_ms(chain, hardware, Action::kStartReduce);
  RC_ASSERT(time.step_ms >= std::max(gathers, reductions) - 1e-9);
  const bool one_at_a_time = hardware.sharing == Sharing::kQueue && hardware.start_us == 0;
  if (one_at_a_time) RC_ASSERT(time.step_ms >= gathers + reductions - 1e-9);
}

RC_GTEST_PROP(SimulationProperty, PartsAddUpAndTheCriticalPathIsWhole, ()) {
  const Chain chain = random_chain();
  Hardware hardware = random_hardware();
  hardware.sharing = Sharing::kEven;
  const StepTime time = chain.predict(hardware);
  const double parts =
      time.compute_ms + time.optimizer_ms + time.exposed_gather_ms + time.exposed_reduce_ms + time.other_ms;
  RC_ASSERT(std::abs(parts - time.step_ms) < 1e-9 * std::max(1.0, time.step_ms));
  double at = 0;
  for (const PathPart& part : time.critical_path) {
    RC_ASSERT(part.begin_ms == at);
    at = part.end_ms;
  }
  RC_ASSERT(at == time.step_ms);
}

RC_GTEST_PROP(SimulationProperty, AnInfinitelyFastNetworkLeavesComputation, ()) {
  const Chain chain = random_chain();
  Hardware hardware = random_hardware();
  hardware.start_us = 0;
  StepCosts costs = chain.costs(hardware);
  for (StepCosts::Unit& unit : costs.units) unit = {};
  const StepTime time = predict(chain.work(), costs, Machine::of(hardware));
  RC_ASSERT(std::abs(time.step_ms - chain.microbatches * (sum(chain.forward) + sum(chain.backward))) < 1e-9);
}

RC_GTEST_PROP(SimulationProperty, GatheringFurtherAheadIsNeverSlowerWithoutReductions, ()) {
  Chain chain = random_chain();
  Hardware hardware = random_hardware();
  hardware.slowdown_by_transfers = 0;
  std::fill(chain.reduce.begin(), chain.reduce.end(), 0);
  chain.strategy = *rc::gen::element(Strategy::kOptimGrads, Strategy::kOptimGradsParams);
  double last = 0;
  for (int depth = 0; depth < 5; ++depth) {
    chain.schedule = schedule::Schedule::static_order(depth);
    const double step = chain.predict(hardware).step_ms;
    if (depth > 0) RC_ASSERT(step <= last + 1e-9);
    last = step;
  }
}

RC_GTEST_PROP(SimulationProperty, FreeingWeightsAfterTheForwardMovesMore, ()) {
  Chain chain = random_chain();
  const Hardware hardware = plain_hardware();
  chain.strategy = Strategy::kOptimGrads;
  const double kept = alone_ms(chain, hardware, Action::kStartGather);
  chain.strategy = Strategy::kOptimGradsParams;
  RC_ASSERT(alone_ms(chain, hardware, Action::kStartGather) >= kept);
}

}  // namespace
}  // namespace fsdp::plan::time::simulation_test
