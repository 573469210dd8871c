#include "fsdp/schedule/static_order.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace fsdp::schedule {
namespace {

using Units = std::vector<int>;

bool run_pass(StaticOrder& order, Pass pass, const Units& units) {
  order.begin_pass(pass);
  for (int unit : units) order.visit(unit);
  return order.end_pass();
}

TEST(StaticOrder, KnowsNothingAtFirst) {
  StaticOrder order({.forward_depth = 2, .backward_depth = 2});
  EXPECT_TRUE(order.ahead().empty());
  order.begin_pass(Pass::kForward);
  order.visit(0);
  order.visit(1);
  EXPECT_TRUE(order.ahead().empty());
}

TEST(StaticOrder, FollowsTheRecordedOrder) {
  StaticOrder order({.forward_depth = 2, .backward_depth = 2});
  EXPECT_FALSE(run_pass(order, Pass::kForward, {0, 1, 2, 3}));
  order.begin_pass(Pass::kForward);
  EXPECT_TRUE(order.ahead().empty());
  order.visit(0);
  EXPECT_EQ(order.ahead(), (Units{1, 2}));
  order.visit(1);
  EXPECT_EQ(order.ahead(), (Units{2, 3}));
  order.visit(2);
  EXPECT_EQ(order.ahead(), (Units{3}));
  order.visit(3);
  EXPECT_TRUE(order.ahead().empty());
  EXPECT_FALSE(order.end_pass());
  EXPECT_EQ(order.changes(), 0);
}

TEST(StaticOrder, FirstBackwardIsTheReverseOfTheForward) {
  StaticOrder order;
  run_pass(order, Pass::kForward, {0, 1, 2, 3});
  order.begin_pass(Pass::kBackward);
  order.visit(2);  // unit 3 is still unsharded: its touch may be no transition
  EXPECT_EQ(order.ahead(), (Units{1}));
  order.visit(0);
  order.visit(1);
  EXPECT_FALSE(order.end_pass());
  order.begin_pass(Pass::kBackward);  // from now on as recorded
  order.visit(2);
  EXPECT_EQ(order.ahead(), (Units{0}));
}

TEST(StaticOrder, DepthZeroPredictsNothing) {
  StaticOrder order({.forward_depth = 0, .backward_depth = 0});
  run_pass(order, Pass::kForward, {0, 1});
  order.begin_pass(Pass::kForward);
  order.visit(0);
  EXPECT_TRUE(order.ahead().empty());
}

TEST(StaticOrder, BytesAreBounded) {
  StaticOrder order({.forward_depth = 3, .backward_depth = 3, .max_bytes = 100});
  run_pass(order, Pass::kForward, {0, 1, 2, 3});
  order.begin_pass(Pass::kForward);
  order.visit(0);
  EXPECT_EQ(order.ahead(), (Units{1, 2, 3}));
  EXPECT_EQ(order.ahead(std::vector<int64_t>{500, 60, 40, 1}), (Units{1, 2}));
  EXPECT_EQ(order.ahead(std::vector<int64_t>{0, 101, 1, 1}), Units{});
  EXPECT_EQ(order.ahead(std::vector<int64_t>{0, 60, 0, 40}), (Units{1, 2, 3}));
}

TEST(StaticOrder, FindsItsPlaceAgain) {
  StaticOrder order;
  run_pass(order, Pass::kForward, {0, 1, 2, 3, 4});
  order.begin_pass(Pass::kForward);
  order.visit(0);
  order.visit(3);  // skipped 1 and 2
  EXPECT_EQ(order.ahead(), (Units{4}));
  order.visit(1);  // back: searched from the start
  EXPECT_EQ(order.ahead(), (Units{2}));
  order.visit(9);  // unknown
  EXPECT_TRUE(order.ahead().empty());
  order.visit(2);
  EXPECT_EQ(order.ahead(), (Units{3}));
}

TEST(StaticOrder, ChangesAreCountedAndLearnt) {
  StaticOrder order;
  run_pass(order, Pass::kForward, {0, 1, 2});
  EXPECT_TRUE(run_pass(order, Pass::kForward, {0, 2, 1}));
  EXPECT_EQ(order.changes(), 1);
  order.begin_pass(Pass::kForward);
  order.visit(0);
  EXPECT_EQ(order.ahead(), (Units{2}));
}

TEST(StaticOrder, AlternatingRootsKeepTheirOrders) {
  StaticOrder order;
  for (int step = 0; step < 3; ++step) {
    run_pass(order, Pass::kForward, {0, 1, 2});
    run_pass(order, Pass::kBackward, {2, 1, 0});
    run_pass(order, Pass::kForward, {10, 2, 1});
    run_pass(order, Pass::kBackward, {1, 2, 10});
  }
  EXPECT_EQ(order.changes(), 0);
  order.begin_pass(Pass::kForward);
  order.visit(10);
  EXPECT_EQ(order.ahead(), (Units{2}));
}

TEST(StaticOrder, UnitUsedTwiceInOnePass) {
  StaticOrder order({.forward_depth = 2, .backward_depth = 2});
  run_pass(order, Pass::kForward, {0, 1, 0, 2});
  order.begin_pass(Pass::kForward);
  order.visit(0);
  EXPECT_EQ(order.ahead(), (Units{1}));  // the unit itself is not named
  order.visit(1);
  EXPECT_EQ(order.ahead(), (Units{0, 2}));
  order.visit(0);
  EXPECT_EQ(order.ahead(), (Units{2}));
}

TEST(StaticOrder, ForwardsInARowAreNoChange) {
  StaticOrder order;
  run_pass(order, Pass::kForward, {0, 1, 2});
  order.begin_pass(Pass::kForward);
  for (int batch = 0; batch < 3; ++batch) {
    order.visit(0);
    EXPECT_EQ(order.ahead(), (Units{1})) << batch;
    order.visit(1);
    order.visit(2);
  }
  EXPECT_FALSE(order.end_pass());
  EXPECT_EQ(order.changes(), 0);
}

TEST(StaticOrder, RecordingsAreBounded) {
  StaticOrder order({.max_recorded = 4});
  EXPECT_FALSE(run_pass(order, Pass::kForward, {0, 1, 2, 3, 4}));
  order.begin_pass(Pass::kForward);
  order.visit(0);
  EXPECT_TRUE(order.ahead().empty());
  EXPECT_FALSE(run_pass(order, Pass::kForward, {0, 1, 2, 3}));
  order.begin_pass(Pass::kForward);
  order.visit(0);
  EXPECT_EQ(order.ahead(), (Units{1}));
}

TEST(StaticOrder, InterruptedPassIsForgotten) {
  StaticOrder order;
  run_pass(order, Pass::kForward, {0, 1, 2});
  order.begin_pass(Pass::kForward);
  order.visit(0);  // an exception ends the step here
  run_pass(order, Pass::kForward, {0, 1, 2});
  EXPECT_EQ(order.changes(), 0);
  EXPECT_FALSE(order.end_pass());  // no pass is open
  order.visit(1);                  // outside of a pass: only the digest hears of it
  EXPECT_TRUE(order.ahead().empty());
}

TEST(StaticOrder, DigestIsOfTheVisitsSinceReset) {
  StaticOrder a;
  StaticOrder b;
  run_pass(b, Pass::kForward, {7, 8});  // another history
  b.reset_digest();
  run_pass(a, Pass::kForward, {0, 1});
  run_pass(b, Pass::kForward, {0, 1});
  EXPECT_EQ(a.digest(), b.digest());
  run_pass(a, Pass::kBackward, {1, 0});
  run_pass(b, Pass::kBackward, {0, 1});
  EXPECT_NE(a.digest(), b.digest());
  a.reset_digest();
  b.reset_digest();
  EXPECT_EQ(a.digest(), b.digest());
}

TEST(StaticOrder, BadArguments) {
  StaticOrder order;
  EXPECT_THROW(order.visit(-1), std::invalid_argument);
  EXPECT_THROW(StaticOrder({.forward_depth = -1, .backward_depth = -1}), std::invalid_argument);
  EXPECT_THROW(StaticOrder({.max_bytes = -1}), std::invalid_argument);
}

RC_GTEST_PROP(StaticOrderProperty, PredictsARepeatedPassExactly, (std::vector<uint8_t> bytes)) {
  RC_PRE(!bytes.empty());
  const Units units(bytes.begin(), bytes.end());
  StaticOrder order;
  run_pass(order, Pass::kForward, units);
  order.begin_pass(Pass::kForward);
  for (size_t i = 0; i < units.size(); ++i) {
    order.visit(units[i]);
    const bool same = i + 1 < units.size() && units[i + 1] == units[i];
    const Units expected = i + 1 < units.size() && !same ? Units{units[i + 1]} : Units{};
    RC_ASSERT(order.ahead() == expected);
  }
  RC_ASSERT(!order.end_pass());
}

RC_GTEST_PROP(StaticOrderProperty, AnyVisitsAreSafe, (std::vector<std::pair<uint8_t, uint8_t>> events)) {
  StaticOrder order({.forward_depth = 3, .backward_depth = 3, .max_recorded = 16});
  for (const auto& [kind, unit] : events) {
    if (kind % 8 == 0) order.begin_pass(kind % 16 == 0 ? Pass::kForward : Pass::kBackward);
    if (kind % 8 == 1) order.end_pass();
    if (kind % 8 > 1) order.visit(unit % 5);
    const Units ahead = order.ahead();
    RC_ASSERT(ahead.size() <= 3u);
    for (int next : ahead) RC_ASSERT(std::count(ahead.begin(), ahead.end(), next) == 1);
  }
}

}  // namespace
}  // namespace fsdp::schedule
