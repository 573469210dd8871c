// Turns on a root with three blocks, with weights that are a log. Every expected line was worked out by hand, from the
// schedules' descriptions in docs/engine.md.
#include "fsdp/schedule/turns.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace fsdp::schedule {
namespace {

using Log = std::vector<std::string>;
constexpr int kRoot = 3;

// "+1": a gather of unit 1 starts, "1": it was waited for, "f1" and "b1": unit 1 computes, "r1": its gradients are
// reduced, "-1": it is freed, "-1*": likewise, and its backward comes. A gather takes 10 bytes.
class LoggedWeights : public UnitWeights {
 public:
  explicit LoggedWeights(const Schedule& schedule) : turns(schedule, *this) {
    for (int block = 0; block < kRoot; ++block) turns.add_unit(kRoot);
    turns.add_unit();
  }

  bool current(int unit) const override { return there.count(unit) > 0; }
  int64_t bytes_to_gather(int unit) const override { return current(unit) ? 0 : 10; }
  int gathers_in_flight(int unit) const override { return coming.count(unit) > 0 ? 1 : 0; }
  bool may_reshard(int unit, TurnEnd end) const override {
    return end == TurnEnd::kForward ? frees_after_forward : complete.count(unit) > 0;
  }
  void start_gather(int unit, Cause) override {
    if (!coming.insert(unit).second) return;
    write("+", unit);
    turns.note_gather(unit);
    turns.note_live(unit);
  }
  void finish_gather(int unit) override {
    if (coming.erase(unit) == 0) return;
    write("", unit);
    there.insert(unit);
  }
  void reshard(int unit, After after) override {
    finish_gather(unit);
    if (there.erase(unit) > 0) write("-", unit, after == After::kForward ? "*" : "");
    turns.note_reshard(unit);
  }

  void touch(int unit) {
    if (!turns.is_inside(unit) || !current(unit)) turns.move_to(unit);
  }
  // The root has a layer before the blocks and one behind them.
  Log forward(const std::vector<int>& blocks = {0, 1, 2}) {
    log.clear();
    turns.begin_forward();
    std::vector<int> way = {kRoot};
    way.insert(way.end(), blocks.begin(), blocks.end());
    way.push_back(kRoot);
    for (const int unit : way) {
      touch(unit);
      write("f", unit);
    }
    return log;
  }
  Log backward() {
    log.clear();
    complete.clear();
    turns.begin_backward();
    for (const int unit : {kRoot, 2, 1, 0}) {
      touch(unit);
      write("b", unit);
      if (unit != kRoot) end_with_gradients(unit);
    }
    end_with_gradients(kRoot);
    for (int unit = 0; unit <= kRoot; ++unit) reshard(unit, After::kUse);
    turns.leave();
    turns.end_backward();
    return log;
  }
  void end_with_gradients(int unit) {
    complete.insert(unit);
    turns.complete_gradients(unit, [&] { write("r", unit); });
  }
  void run_steps(int count) {
    for (int step = 0; step < count; ++step) {
      forward();
      backward();
    }
  }
  void write(const char* event, int unit, const char* mark = "") { log.push_back(event + std::to_string(unit) + mark); }

  Turns turns;
  bool frees_after_forward = true;
  std::set<int> there, coming, complete;
  Log log;
};

TEST(Turns, TheFirstBackwardFollowsTheReverseOfTheForward) {
  LoggedWeights weights({});
  EXPECT_EQ(weights.forward(),
            (Log{"+3", "3", "f3", "+0", "0", "f0", "-0*", "+1", "1", "f1", "-1*", "+2", "2", "f2", "f3"}));
  EXPECT_EQ(weights.backward(),
            (Log{"b3", "+1", "b2", "r2", "-2", "1", "+0", "b1", "r1", "-1", "0", "b0", "r0", "-0", "r3", "-3"}));
}

TEST(Turns, AKnownOrderIsGatheredOneUnitAhead) {
  LoggedWeights weights({});
  weights.run_steps(1);
  EXPECT_EQ(weights.forward(),
            (Log{"+3", "3", "+0", "f3", "0", "+1", "f0", "-0*", "1", "+2", "f1", "-1*", "2", "f2", "f3"}));
}

TEST(Turns, OnDemandGathersAtTheTouchAndFreesAtTheNext) {
  LoggedWeights weights(Schedule::on_demand());
  weights.run_steps(1);
  EXPECT_EQ(weights.forward(),
            (Log{"+3", "3", "f3", "+0", "0", "f0", "-0*", "+1", "1", "f1", "-1*", "+2", "2", "f2", "f3"}));
  EXPECT_EQ(weights.backward(),
            (Log{"b3", "b2", "r2", "-2", "+1", "1", "b1", "r1", "-1", "+0", "0", "b0", "r0", "-0", "r3", "-3"}));
}

TEST(Turns, ADelayedReleaseComesOneTransitionLater) {
  LoggedWeights weights(Schedule::delayed_release(1));
  weights.run_steps(1);
  EXPECT_EQ(weights.forward(), (Log{"+3", "3", "f3", "+0", "0", "f0", "+1", "1", "f1", "-0*", "+2", "2", "f2", "f3"}));
  EXPECT_EQ(weights.backward(),
            (Log{"b3", "b2", "r2", "b1", "r1", "-2", "+0", "0", "b0", "r0", "r3", "-0", "-1", "-3"}));
}

TEST(Turns, PostPrefetchComesBetweenGradientsAndReduction) {
  Schedule schedule;
  schedule.backward = BackwardPrefetch::kPost;
  schedule.release = ReleaseOrder::kReshardFirst;
  LoggedWeights weights(schedule);
  weights.run_steps(1);
  weights.forward();
  EXPECT_EQ(weights.backward(),
            (Log{"b3", "b2", "+1", "-2", "r2", "1", "b1", "+0", "-1", "r1", "0", "b0", "-0", "r0", "-3", "r3"}));
}

TEST(Turns, BytesLimitWhatIsGatheredAhead) {
  LoggedWeights weights(Schedule::static_order(3, 20));
  weights.run_steps(1);
  EXPECT_EQ(weights.forward(),
            (Log{"+3", "3", "+0", "+1", "f3", "0", "+2", "f0", "-0*", "1", "f1", "-1*", "2", "f2", "f3"}));
}

TEST(Turns, GathersInFlightLimitWhatIsGatheredAhead) {
  Schedule schedule = Schedule::static_order(3);
  schedule.max_gathers_in_flight = 1;
  LoggedWeights weights(schedule);
  weights.run_steps(1);
  EXPECT_EQ(weights.forward(),
            (Log{"+3", "3", "+0", "f3", "0", "+1", "f0", "-0*", "1", "+2", "f1", "-1*", "2", "f2", "f3"}));
}

TEST(Turns, AUnitThatCameBackStaysInTheNextForward) {
  LoggedWeights weights(Schedule::on_demand());
  EXPECT_EQ(weights.forward({0, 1, 0, 2}), (Log{"+3", "3", "f3", "+0", "0", "f0", "-0*", "+1", "1", "f1", "-1*", "+0",
                                                "0", "f0", "-0*", "+2", "2", "f2", "f3"}));
  weights.backward();
  EXPECT_EQ(weights.forward({0, 1, 0, 2}),
            (Log{"+3", "3", "f3", "+0", "0", "f0", "+1", "1", "f1", "-1*", "f0", "+2", "2", "f2", "f3"}));
}

TEST(Turns, AWrongGuessIsFreedUnread) {
  LoggedWeights weights({});
  weights.run_steps(1);
  EXPECT_EQ(weights.forward({2, 0, 1}), (Log{"+3", "3", "+0", "f3", "0", "-0", "+2", "2", "f2", "-2*", "+0", "0", "+1",
                                             "f0", "-0*", "1", "+2", "f1", "f3"}));
}

TEST(Turns, AListTakesThePlaceOfTheOrder) {
  LoggedWeights weights({});
  weights.turns.set_ahead(0, Pass::kForward, {2, 1});
  EXPECT_EQ(weights.forward(), (Log{"+3", "3", "f3", "+0", "0", "+2", "+1", "f0", "-0*", "2", "-2", "1", "f1", "-1*",
                                    "+2", "2", "f2", "f3"}));
}

TEST(Turns, WhatMayNotBeFreedStays) {
  LoggedWeights weights({});
  weights.frees_after_forward = false;
  EXPECT_EQ(weights.forward(), (Log{"+3", "3", "f3", "+0", "0", "f0", "+1", "1", "f1", "+2", "2", "f2", "f3"}));
  EXPECT_EQ(weights.turns.live(), (std::vector<int>{3, 0, 1, 2}));
}

TEST(Turns, WhatTheProgramGatheredIsKeptUntilItIsRead) {
  LoggedWeights weights({});
  weights.turns.begin_forward();
  weights.start_gather(2, Cause::kAhead);
  weights.turns.expect_use(2);
  for (const int unit : {kRoot, 0, 1, 2, 0}) weights.touch(unit);
  EXPECT_EQ(weights.log, (Log{"+2", "+3", "3", "+0", "0", "-0*", "+1", "1", "-1*", "2", "-2*", "+0", "0"}));
}

TEST(Turns, AnOperatorOfSeveralUnitsIsTheTurnOfTheInnermost) {
  LoggedWeights weights({});
  weights.turns.begin_forward();
  EXPECT_EQ(weights.turns.move_to(std::vector<int>{0, 1, kRoot}), 0);  // the first below the last
  EXPECT_EQ(weights.log, (Log{"+0", "+1", "+3", "0", "1", "3"}));
  for (const int unit : {0, 1, kRoot}) EXPECT_TRUE(weights.turns.is_inside(unit)) << unit;
  EXPECT_FALSE(weights.turns.is_inside(2));
  weights.turns.leave();
  EXPECT_FALSE(weights.turns.is_inside(1));
}

TEST(Turns, ARemovedUnitIsForgotten) {
  LoggedWeights weights({});
  weights.turns.begin_forward();
  weights.touch(kRoot);
  weights.touch(0);
  weights.turns.remove_unit(kRoot);
  EXPECT_EQ(weights.turns.live(), (std::vector<int>{0}));
  EXPECT_FALSE(weights.turns.is_inside(kRoot));
  EXPECT_TRUE(weights.turns.is_inside(0));
}

}  // namespace
}  // namespace fsdp::schedule
