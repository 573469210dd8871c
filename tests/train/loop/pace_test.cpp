#include "train/loop/pace.h"

#include <gtest/gtest.h>

namespace fsdp::train {
namespace {

TEST(Pace, MeanIsOfTheLastTwentyMedianOfAllButTheFirstThree) {
  Pace pace;
  pace.start(0);
  EXPECT_EQ(pace.mean_step_seconds(), 0);
  EXPECT_EQ(pace.median_step_seconds(), 0);
  for (int step = 0; step < 3; ++step) pace.add_step(100, 0);
  for (int step = 0; step < 10; ++step) pace.add_step(1, 0);
  EXPECT_EQ(pace.median_step_seconds(), 1);
  for (int step = 0; step < 10; ++step) pace.add_step(3, 0);
  EXPECT_DOUBLE_EQ(pace.mean_step_seconds(), 2);
}

TEST(Pace, StepsThatFitAreOfTheMedian) {
  Pace pace;
  pace.start(0);
  EXPECT_GT(pace.steps_until(1), int64_t{1} << 40) << "no step has told how long one takes";
  for (int step = 0; step < 10; ++step) pace.add_step(step < 3 ? 1e6 : 1e5, 0);
  EXPECT_EQ(pace.steps_until(3.5e5), 3);
  EXPECT_EQ(pace.steps_until(-1), 0);
}

TEST(Pace, WindowCountsStepsAndWaits) {
  Pace pace;
  pace.start(10);
  pace.add_step(1, 0.25);
  pace.add_step(1, 0.5);
  EXPECT_EQ(pace.since_mark(12).steps, 2);
  EXPECT_EQ(pace.since_mark(12).data_seconds, 0.75);
  pace.mark(12);
  EXPECT_EQ(pace.since_mark(13).steps, 1);
  EXPECT_EQ(pace.since_mark(13).data_seconds, 0);
  pace.go_back_to(5);
  EXPECT_EQ(pace.since_mark(8).steps, 3);
}

TEST(Pace, PausesAreNoPartOfTheWindow) {
  Pace pace;
  pace.start(0);
  pace.pause(std::chrono::hours(1));
  EXPECT_LT(pace.since_mark(1).seconds, -3000);
  EXPECT_GE(pace.elapsed(), 0);
}

}  // namespace
}  // namespace fsdp::train
