#include "train/lr_schedule.h"

#include <gtest/gtest.h>

namespace fsdp::train {
namespace {

TEST(LrSchedule, WarmUpThenCosine) {
  const LrSchedule schedule{.lr = 3e-3, .min_lr_ratio = 0.1, .warmup_steps = 5, .steps = 30};
  EXPECT_DOUBLE_EQ(schedule.at(0), 6e-4);
  EXPECT_DOUBLE_EQ(schedule.at(4), 3e-3);
  EXPECT_LT(schedule.at(5), 3e-3);
  EXPECT_NEAR(schedule.at(29), 3e-4, 1e-18);
  EXPECT_NEAR(schedule.at(100), 3e-4, 1e-18);  // beyond the end
}

TEST(LrSchedule, WithoutWarmUpAndWithNothingElse) {
  EXPECT_NEAR((LrSchedule{.lr = 1, .min_lr_ratio = 0, .warmup_steps = 0, .steps = 2}).at(0), 0.5, 1e-15);
  EXPECT_DOUBLE_EQ((LrSchedule{.lr = 1, .min_lr_ratio = 0.1, .warmup_steps = 4, .steps = 4}).at(3), 1);
}

TEST(LrSchedule, WarmUpDoesNotDependOnSteps) {
  const LrSchedule few{.lr = 1, .min_lr_ratio = 0.1, .warmup_steps = 10, .steps = 20};
  const LrSchedule many{.lr = 1, .min_lr_ratio = 0.1, .warmup_steps = 10, .steps = 2000};
  for (int64_t step = 0; step < 10; ++step) {
    EXPECT_EQ(few.at(step), many.at(step));
  }
}

}  // namespace
}  // namespace fsdp::train
