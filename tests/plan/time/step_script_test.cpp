// The order of a step, against the runtime's documented one, and counts by the formulas of docs/engine.md. The
// runtime's own traces: tests/promise/order/planned_order_test.cpp.
#include "plan/time/step_script.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

namespace fsdp::plan::time::step_script_test {
namespace {

// docs/one_step.md: a root with its first and last layer, and three blocks.
StepWork blocks(int shard_ranks = 4, int replica_ranks = 1) {
  StepWork work;
  work.units = {{"root", -1, 100, 200}, {"layers.0", 0, 10, 20}, {"layers.1", 0, 10, 20}, {"layers.2", 0, 10, 20}};
  work.passages = {{0, 0, {}, {}, BackwardReads::kNothing, Arrival::kSomeGradients},
                   {1, 0, {}, {}, BackwardReads::kWeights, Arrival::kSomeGradients},
                   {2, 0, {}, {}, BackwardReads::kWeights, Arrival::kSomeGradients},
                   {3, 0, {}, {}, BackwardReads::kWeights, Arrival::kSomeGradients},
                   {0, 0, {}, {}, BackwardReads::kWeights, Arrival::kSomeGradients}};
  work.shard_ranks = shard_ranks;
  work.replica_ranks = replica_ranks;
  return work;
}

std::vector<std::string> table(const StepWork& work) {
  std::vector<std::string> lines;
  for (const Instruction& instruction : record_step(work)) {
    if (instruction.action != Action::kCompute) lines.push_back(describe(instruction, work));
  }
  return lines;
}

TEST(StepScript, IsTheDocumentedStep) {
  const std::vector<std::string> expected = {"unshard root",
                                             "wait gather root",
                                             "unshard layers.0",  // forward
                                             "wait gather layers.0",
                                             "unshard layers.1",
                                             "reshard layers.0",
                                             "wait gather layers.1",
                                             "unshard layers.2",
                                             "reshard layers.1",
                                             "wait gather layers.2",  //
                                             "unshard layers.1",      // backward
                                             "start reduce layers.2",
                                             "reshard layers.2",
                                             "wait gather layers.1",
                                             "unshard layers.0",
                                             "start reduce layers.1",
                                             "reshard layers.1",
                                             "wait gather layers.0",
                                             "wait reduce layers.2",
                                             "start reduce layers.0",
                                             "reshard layers.0",
                                             "start reduce root",
                                             "reshard root",
                                             "wait reduce layers.1",
                                             "wait reduce layers.0",
                                             "wait reduce root",
                                             "end of backward",
                                             "optimizer"};
  EXPECT_EQ(table(blocks()), expected);
}

std::map<Action, int> counts(const StepWork& work) {
  std::map<Action, int> counts;
  for (const Instruction& instruction : record_step(work)) ++counts[instruction.action];
  return counts;
}

// U = 4 units; k = 2: the root and the last block are unsharded when the backward starts.
TEST(StepScript, CountsAreThoseOfTheEnginesFormulas) {
  constexpr int kUnits = 4, kKept = 2;
  for (const int microbatches : {1, 2, 5}) {
    const auto of = [&](Strategy strategy, int replicas = 1) {
      StepWork work = blocks(4, replicas);
      work.microbatches = microbatches;
      work.strategy = strategy;
      return counts(work);
    };
    const int m = microbatches;
    EXPECT_EQ(of(Strategy::kNoShard)[Action::kStartGather], 0);
    EXPECT_EQ(of(Strategy::kNoShard)[Action::kStartReduce], kUnits);
    EXPECT_EQ(of(Strategy::kOptim)[Action::kStartGather], kUnits);
    EXPECT_EQ(of(Strategy::kOptim)[Action::kStartReduce], kUnits);
    for (const auto& [strategy, replicas] :
         {std::pair(Strategy::kOptimGrads, 1), std::pair(Strategy::kHybridZero2, 2)}) {
      EXPECT_EQ(of(strategy, replicas)[Action::kStartGather], m * kUnits);
      EXPECT_EQ(of(strategy, replicas)[Action::kStartReduce], m * kUnits);
    }
    for (const auto& [strategy, replicas] : {std::pair(Strategy::kOptimGradsParams, 1), std::pair(Strategy::kHybrid, 2),
                                             std::pair(Strategy::kHybridOptim, 2)}) {
      EXPECT_EQ(of(strategy, replicas)[Action::kStartGather], m * (2 * kUnits - kKept));
      EXPECT_EQ(of(strategy, replicas)[Action::kStartReduce], m * kUnits);
    }
  }
}

TEST(StepScript, ReplicasAreReachedInTheLastMicrobatchAndByTheFirstGathers) {
  StepWork work = blocks(4, 2);
  work.strategy = Strategy::kHybridOptim;
  work.microbatches = 3;
  std::map<std::pair<Action, int>, int> reached;
  for (const Instruction& instruction : record_step(work)) {
    if (instruction.reach == Reach::kShardsAndReplicas) ++reached[{instruction.action, instruction.microbatch}];
  }
  const std::map<std::pair<Action, int>, int> expected = {{{Action::kStartGather, 0}, 4},
                                                          {{Action::kStartReduce, 2}, 4}};
  EXPECT_EQ(reached, expected);
}

TEST(StepScript, AForwardGroupGathersInTheBackward) {
  StepWork work = blocks();
  work.reshard_after_forward = 2;
  int from_group = 0;
  for (const Instruction& instruction : record_step(work)) from_group += instruction.reach == Reach::kForwardGroup;
  EXPECT_EQ(from_group, 2);  // layers.1 and layers.0
  work.reshard_after_forward = 1;
  EXPECT_EQ(counts(work)[Action::kStartGather], 4);
}

TEST(StepScript, AWorldOfOneMovesNothing) { EXPECT_EQ(counts(blocks(1))[Action::kStartGather], 0); }

TEST(StepScript, NonsenseSaysWhatWouldBeLegal) {
  const auto error_of = [](auto change) -> std::string {
    StepWork work = blocks();
    change(work);
    try {
      record_step(work);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of([](StepWork&) {}), "no error");
  EXPECT_EQ(error_of([](StepWork& work) { work.reshard_after_forward = 3; }),
            "[step] reshard_after_forward: got 3, expected a divisor of the 4 ranks of the shard axis.");
  EXPECT_EQ(error_of([](StepWork& work) { work.shard_ranks = 12; }),
            "[step] ranks: got 12 on nodes of 8, expected a multiple of it, or one node at most.");
  EXPECT_EQ(error_of([](StepWork& work) { work.strategy = Strategy::kHybrid; }),
            "[step] strategy hybrid: got 1 replica, expected at least 2. Choose optim_grads_params, or a mesh with "
            "replicas.");
  EXPECT_EQ(error_of([](StepWork& work) { work.passages[1].unit = 9; }),
            "[step] passage: got unit 9, expected 0 to 3.");
  EXPECT_EQ(error_of([](StepWork& work) { work.passages.erase(work.passages.begin() + 1); }),
            "[step] unit 'layers.0': got no passage, expected at least one.");
  EXPECT_EQ(error_of([](StepWork& work) { work.units[0].parent = 1; }),
            "[step] unit 'root', parent: got 1, expected -1 or the index of a unit around it.");
  EXPECT_EQ(error_of([](StepWork& work) { work.microbatches = 0; }),
            "[step] microbatches: got 0, expected at least 1.");
}

}  // namespace
}  // namespace fsdp::plan::time::step_script_test
