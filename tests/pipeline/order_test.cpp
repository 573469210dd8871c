// The orders of a pipeline by what can be counted: every rank waits for nobody who waits for it, is idle for as long as
// the formulas of the papers say, and keeps as few microbatches as they promise.
#include "fsdp/pipeline/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "fsdp/base/error.h"

namespace fsdp::pipeline {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Key = std::tuple<Pass, int, int>;  // stage, microbatch

Key key_of(const Turn& turn) { return {turn.pass, turn.stage, turn.microbatch}; }

// What the passes of all stages of a rank take.
struct Costs {
  double forward = 1, input = 1, weights = 1;

  double of_backward() const { return input + weights; }
  double of_microbatch() const { return forward + of_backward(); }
  double of(Order order, const Turn& turn) const {
    if (turn.pass == Pass::kForward) return forward;
    if (turn.pass == Pass::kWeights) return weights;
    return is_split(order, turn.stage) ? input : of_backward();
  }
};

// When the last turn ends if ranks take their turns as soon as what they start from is there. -1: somebody waits for
// ever.
double time_of(Order order, const Shape& shape, const Costs& costs = {}) {
  std::vector<std::vector<Turn>> turns;
  for (int rank = 0; rank < shape.ranks; ++rank) turns.push_back(turns_of(order, shape, rank));
  std::map<Key, double> ends;
  std::vector<size_t> next(turns.size());
  std::vector<double> clocks(turns.size());
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t rank = 0; rank < turns.size(); ++rank) {
      while (next[rank] < turns[rank].size()) {
        const Turn& turn = turns[rank][next[rank]];
        const bool is_forward = turn.pass == Pass::kForward, is_backward = turn.pass == Pass::kBackward;
        const bool is_at_end = turn.stage + 1 == shape.stages();
        double begin = clocks[rank];
        std::vector<Key> needs;
        if (is_forward && turn.stage > 0) needs.push_back({Pass::kForward, turn.stage - 1, turn.microbatch});
        if (is_backward) needs.push_back({Pass::kForward, turn.stage, turn.microbatch});
        if (turn.pass == Pass::kWeights) needs.push_back({Pass::kBackward, turn.stage, turn.microbatch});
        if (is_backward && !is_at_end) needs.push_back({Pass::kBackward, turn.stage + 1, turn.microbatch});
        if (std::any_of(needs.begin(), needs.end(), [&](const Key& need) { return ends.count(need) == 0; })) break;
        for (const Key& need : needs) begin = std::max(begin, ends.at(need));
        clocks[rank] = begin + costs.of(order, turn) / shape.stages_per_rank;
        ends[key_of(turn)] = clocks[rank];
        ++next[rank];
        moves = true;
      }
    }
  }
  for (size_t rank = 0; rank < turns.size(); ++rank) {
    if (next[rank] < turns[rank].size()) return -1;
  }
  return *std::max_element(clocks.begin(), clocks.end());
}

std::vector<std::pair<Order, Shape>> shapes() {
  std::vector<std::pair<Order, Shape>> all;
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int microbatches = 1; microbatches <= 4 * ranks; ++microbatches) {
      all.push_back({Order::kGPipe, {ranks, 1, microbatches}});
      all.push_back({Order::k1F1B, {ranks, 1, microbatches}});
      all.push_back({Order::kZeroBubble, {ranks, 1, microbatches}});
      if (microbatches % ranks != 0) continue;
      for (int own = 1; own <= 4; ++own) all.push_back({Order::kInterleaved, {ranks, own, microbatches}});
    }
  }
  return all;
}

std::string text_of(Order order, const Shape& shape) {
  return "order " + std::to_string(static_cast<int>(order)) + ", " + std::to_string(shape.ranks) + " ranks x " +
         std::to_string(shape.stages_per_rank) + ", " + std::to_string(shape.microbatches) + " microbatches";
}

TEST(PipelineOrder, EachRankTakesAllTurnsOfItsStagesOnce) {
  for (const auto& [order, shape] : shapes()) {
    SCOPED_TRACE(text_of(order, shape));
    std::set<Key> taken;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      std::map<std::pair<Pass, int>, int> next;
      for (const Turn& turn : turns_of(order, shape, rank)) {
        ASSERT_EQ(turn.stage % shape.ranks, rank);
        ASSERT_TRUE(taken.insert(key_of(turn)).second);
        ASSERT_EQ(turn.microbatch, (next[{turn.pass, turn.stage}]++));
        if (turn.pass == Pass::kBackward) {
          ASSERT_EQ(taken.count({Pass::kForward, turn.stage, turn.microbatch}), 1U);
        }
        if (turn.pass == Pass::kWeights) {
          ASSERT_EQ(taken.count({Pass::kBackward, turn.stage, turn.microbatch}), 1U);
        }
      }
    }
    const int split = order == Order::kZeroBubble ? shape.stages() - 1 : 0;
    ASSERT_EQ(taken.size(), static_cast<size_t>((2 * shape.stages() + split) * shape.microbatches));
  }
}

// The bubble of both orders with one stage on each rank is (p - 1) (f + b), of an interleaved one a v-th of that:
// Narayanan et al. 2021, section 2.2.
TEST(PipelineOrder, TheBubbleIsThatOfThePapers) {
  for (const auto& [order, shape] : shapes()) {
    if (order == Order::kZeroBubble) continue;
    SCOPED_TRACE(text_of(order, shape));
    const double work = 3.0 * shape.microbatches, bubble = 3.0 * (shape.ranks - 1) / shape.stages_per_rank;
    EXPECT_NEAR(time_of(order, shape), work + bubble, 1e-9);
  }
}

// (p - 1) (tF + tB - tW), where tB is the time of an input's gradient and not less than tW: Qi et al. 2023, table 1,
// ZB-H1, from as many microbatches as ranks on; below, and where tW is longer, no more than that of 1F1B.
TEST(PipelineOrder, ZeroBubbleWaitsForAsLongAsThePaperSays) {
  for (const Costs& costs : {Costs{1, 1, 1}, Costs{1, 1.25, 0.75}, Costs{2, 2, 1}, Costs{1, 1, 1.5}}) {
    for (const auto& [order, shape] : shapes()) {
      if (order != Order::kZeroBubble) continue;
      SCOPED_TRACE(text_of(order, shape));
      const double time = time_of(order, shape, costs), work = shape.microbatches * costs.of_microbatch();
      const double saved = std::min(costs.weights, costs.input) + costs.weights;
      const double bubble = (shape.ranks - 1) * (costs.of_microbatch() - saved);
      if (shape.microbatches >= shape.ranks) {
        EXPECT_NEAR(time, work + bubble, 1e-9);
      }
      if (shape.ranks > 1) {
        EXPECT_LT(time, time_of(Order::k1F1B, shape, costs));
      }
    }
  }
}

TEST(PipelineOrder, FewMicrobatchesAreInFlight) {
  for (const auto& [order, shape] : shapes()) {
    SCOPED_TRACE(text_of(order, shape));
    for (int rank = 0; rank < shape.ranks; ++rank) {
      int now = 0, most = 0;
      for (const Turn& turn : turns_of(order, shape, rank)) {
        const Pass last = is_split(order, turn.stage) ? Pass::kWeights : Pass::kBackward;
        now += turn.pass == Pass::kForward ? 1 : turn.pass == last ? -1 : 0;
        most = std::max(most, now);
      }
      const int all = shape.microbatches * shape.stages_per_rank, later = shape.ranks - 1 - rank;
      const int ahead = order == Order::k1F1B         ? later
                        : order == Order::kZeroBubble ? shape.ranks - 1
                                                      : 2 * later + (shape.stages_per_rank - 1) * shape.ranks;
      EXPECT_EQ(most, order == Order::kGPipe ? all : std::min(all, ahead + 1));
    }
  }
}

// Each rank after the one before it: what a turn starts from is there.
TEST(PipelineOrder, ForwardsAloneTakeAnyNumberOfMicrobatches) {
  for (const Shape& shape : {Shape{2, 2, 1}, Shape{3, 2, 5}, Shape{2, 3, 4}, Shape{1, 2, 3}}) {
    std::set<Key> done;
    std::vector<size_t> next(static_cast<size_t>(shape.ranks));
    for (bool moves = true; moves;) {
      moves = false;
      for (int rank = 0; rank < shape.ranks; ++rank) {
        const std::vector<Turn> turns = forward_turns_of(shape, rank);
        size_t& own = next[static_cast<size_t>(rank)];
        if (own == turns.size()) continue;
        const Turn& turn = turns[own];
        if (turn.stage > 0 && done.count({Pass::kForward, turn.stage - 1, turn.microbatch}) == 0) continue;
        EXPECT_TRUE(done.insert(key_of(turn)).second);
        ++own;
        moves = true;
      }
    }
    EXPECT_EQ(done.size(), static_cast<size_t>(shape.stages() * shape.microbatches));
  }
}

TEST(PipelineOrder, ShapesThatDoNotFitAreRefused) {
  EXPECT_THAT(
      [] {
        check(Order::k1F1B, {2, 2, 4});
      },
      ThrowsMessage<Error>(HasSubstr("2 stages on each rank, expected 1")));
  EXPECT_THAT([] { check(Order::kInterleaved, {4, 2, 6}); }, ThrowsMessage<Error>(HasSubstr("4 or 8")));
  EXPECT_THAT([] { check(Order::kInterleaved, {4, 2, 3}); }, ThrowsMessage<Error>(HasSubstr("stages: 4.")));
  EXPECT_THAT([] { check(Order::kGPipe, {4, 1, 0}); }, ThrowsMessage<Error>(HasSubstr("0 microbatches")));
  EXPECT_NO_THROW(check(Order::kInterleaved, {4, 2, 8}));
}

}  // namespace
}  // namespace fsdp::pipeline
