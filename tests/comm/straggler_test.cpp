#include "fsdp/comm/liveness/straggler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fsdp/base/error.h"

namespace fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Steps of 100 ms, but for one rank.
std::vector<double> step(int size, int slow_rank, double slow_ms) {
  std::vector<double> times(static_cast<size_t>(size), 100);
  if (slow_rank >= 0) times[static_cast<size_t>(slow_rank)] = slow_ms;
  return times;
}

TEST(StragglerReport, NamesTheSlowRankOnce) {
  StragglerReport report(4);
  for (int i = 0; i < 9; ++i) EXPECT_THAT(report.add_step(step(4, 3, 512)), IsEmpty());
  EXPECT_THAT(report.add_step(step(4, 3, 512)),
              ElementsAre("straggler: rank 3 computes 512 ms per step, the median is 100 ms"));
  EXPECT_THAT(report.stragglers(), ElementsAre(3));
  for (int i = 0; i < 100; ++i) EXPECT_THAT(report.add_step(step(4, 3, 512)), IsEmpty());
}

TEST(StragglerReport, IsFoundWithinTwentyStepsThatCameTenAtATime) {
  StragglerReport report(2);
  for (int i = 0; i < 35; ++i) EXPECT_THAT(report.add_step(step(2, -1, 0)), IsEmpty());
  int steps = 0;
  while (report.stragglers().empty()) {
    ASSERT_LT(++steps, 11);
    report.add_step(step(2, 1, 500));
  }
  EXPECT_THAT(report.stragglers(), ElementsAre(1));  // of two ranks the slow one is not its own median
}

TEST(StragglerReport, SaysWhenItIsOver) {
  StragglerReport report(3);
  for (int i = 0; i < 20; ++i) report.add_step(step(3, 0, 300));
  for (int i = 0; i < 14; ++i) EXPECT_THAT(report.add_step(step(3, -1, 0)), IsEmpty());
  EXPECT_THAT(report.add_step(step(3, -1, 0)), ElementsAre("straggler: rank 0 is no longer slower than the others"));
  EXPECT_THAT(report.stragglers(), IsEmpty());
}

TEST(StragglerReport, LetsSpikesAndSmallDifferencesPass) {
  StragglerReport report(4);
  for (int i = 0; i < 200; ++i) {
    EXPECT_THAT(report.add_step(step(4, i % 3 == 0 ? 2 : -1, 900)), IsEmpty());  // seven of twenty
  }
  StragglerReport close(4);
  for (int i = 0; i < 200; ++i) EXPECT_THAT(close.add_step(step(4, 1, 150)), IsEmpty());
}

TEST(StragglerReport, AllSlowIsNobodySlow) {
  StragglerReport report(3);
  for (int i = 0; i < 50; ++i) EXPECT_THAT(report.add_step(std::vector<double>(3, i < 25 ? 100.0 : 500.0)), IsEmpty());
  StragglerReport alone(1);
  for (int i = 0; i < 50; ++i) EXPECT_THAT(alone.add_step({100.0 * i}), IsEmpty());
}

TEST(StragglerReport, TwoStragglersAreTwoSentences) {
  StragglerReport report(5);
  std::vector<std::string> all;
  for (int i = 0; i < 10; ++i) {
    for (const std::string& text : report.add_step({100, 210, 100, 400, 100})) all.push_back(text);
  }
  EXPECT_THAT(all, ElementsAre("straggler: rank 1 computes 210 ms per step, the median is 100 ms",
                               "straggler: rank 3 computes 400 ms per step, the median is 100 ms"));
}

TEST(StragglerReport, RefusesWhatCannotWork) {
  EXPECT_THROW(StragglerReport(0), Error);
  EXPECT_THROW(StragglerReport(2, {.factor = 1.0}), Error);
  EXPECT_THROW(StragglerReport(2, {.window = 5, .slow_steps = 6}), Error);
  StragglerReport report(2);
  EXPECT_THROW(report.add_step({1, 2, 3}), Error);
}

}  // namespace
}  // namespace fsdp
