#include "train/config/lr_schedule.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <vector>

#include "io/base/json.h"

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

void expect_rates(const LrSchedule& schedule, const std::vector<double>& expected) {
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(schedule.at(static_cast<int64_t>(step)), expected[step], 1e-12 * schedule.lr) << "step " << step;
  }
}

// Values of PyTorch 2.11 with transformers 5.23: get_linear_schedule_with_warmup(3 of 12).
TEST(LrSchedule, LineAsInTransformers) {
  expect_rates({.lr = 3e-3, .min_lr_ratio = 0, .warmup_steps = 3, .steps = 12, .shape = LrSchedule::Shape::kLinear},
               {0.001, 0.002, 0.003, 0.0026666666666666666, 0.0023333333333333335, 0.002, 0.0016666666666666668,
                0.0013333333333333333, 0.001, 0.0006666666666666666, 0.0003333333333333333, 0});
}

// get_wsd_schedule(3 of warm-up, 4 stable, 5 of decay, min_lr_ratio 0.1), which warms up from the lowest rate: the
// warm-up is left out.
TEST(LrSchedule, WarmUpStableDecayAsInTransformers) {
  LrSchedule schedule{.lr = 3e-3,
                      .min_lr_ratio = 0.1,
                      .warmup_steps = 3,
                      .steps = 12,
                      .shape = LrSchedule::Shape::kWsd,
                      .decay = LrSchedule::Decay::kLinear,
                      .decay_steps = 5};
  expect_rates(schedule, {0.001, 0.002, 0.003, 0.003, 0.003, 0.003, 0.003, 0.0024600000000000004, 0.00192,
                          0.0013800000000000002, 0.0008399999999999999, 0.00030000000000000003});
  schedule.decay = LrSchedule::Decay::kOneMinusSqrt;
  expect_rates(schedule, {0.001, 0.002, 0.003, 0.003, 0.003, 0.003, 0.003, 0.0017925232921501139, 0.001292370063509075,
                          0.0009085889930479949, 0.0005850465843002272, 0.00030000000000000003});
}

TEST(LrSchedule, DecayIsATenthUnlessToldAndStaysBehindTheWarmUp) {
  LrSchedule schedule{.lr = 1, .min_lr_ratio = 0, .warmup_steps = 10, .steps = 100, .shape = LrSchedule::Shape::kWsd};
  EXPECT_EQ(schedule.at(89), 1);
  EXPECT_LT(schedule.at(90), 1);
  EXPECT_NEAR(schedule.at(99), 0, 1e-15);
  schedule.decay_steps = 1000;
  EXPECT_EQ(schedule.at(9), 1);
  EXPECT_LT(schedule.at(10), 1);
}

TEST(LrSchedule, ConstantStaysAfterTheWarmUp) {
  const LrSchedule schedule{.lr = 2, .warmup_steps = 4, .steps = 10, .shape = LrSchedule::Shape::kConstant};
  expect_rates(schedule, {0.5, 1, 1.5, 2, 2, 2, 2, 2, 2, 2});
}

// What PyTorch computed for the curves that every sharded run must reproduce.
TEST(LrSchedule, GoldenCurves) {
  int num_curves = 0;
  for (const auto& place : std::filesystem::directory_iterator(FSDP_SOURCE_DIR "/tests/data/curves")) {
    const nlohmann::json curve = io::read_json_file(place.path() / "curve.json");
    const auto& hyper = curve.at("hyper");
    const LrSchedule schedule{.lr = hyper.at("lr_max"),
                              .min_lr_ratio = hyper.at("lr_min_ratio"),
                              .warmup_steps = hyper.at("warmup"),
                              .steps = hyper.at("steps")};
    const auto expected = curve.at("curves").at("fp32").at("lr").get<std::vector<double>>();
    ASSERT_EQ(static_cast<int64_t>(expected.size()), schedule.steps);
    for (size_t step = 0; step < expected.size(); ++step) {
      EXPECT_NEAR(schedule.at(static_cast<int64_t>(step)) / expected[step], 1, 1e-12) << place.path() << " " << step;
    }
    ++num_curves;
  }
  EXPECT_GT(num_curves, 0);
}

TEST(LrSchedule, TokensBecomeSteps) {
  Config config;
  config.data.sequence_length = 32;
  config.train.batch_sequences = 8;
  config.train.steps = 100;
  config.train.warmup_steps = 7;
  EXPECT_EQ(tokens_per_step(config), 256);
  EXPECT_EQ(resolve_tokens(config).steps, 100);
  EXPECT_EQ(resolve_tokens(config).warmup_steps, 7);
  config.train.max_tokens = 256 * 20 + 1;
  config.train.warmup_tokens = 256 * 5;
  EXPECT_EQ(resolve_tokens(config).steps, 21) << "rounded up";
  EXPECT_EQ(resolve_tokens(config).warmup_steps, 5);
  config.train = resolve_tokens(config);
  EXPECT_EQ(resolve_tokens(config).steps, 21) << "again";
  config.train.max_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(resolve_tokens(config).steps, 21) << "the lower one counts";
  config.train.steps = 0;
  EXPECT_EQ(resolve_tokens(config).steps, (std::numeric_limits<int64_t>::max() - 1) / 256 + 1);
  config.train.batch_sequences = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(resolve_tokens(config).steps, 1);
}

TEST(LrSchedule, InWords) {
  LrSchedule schedule{.lr = 1e-3, .min_lr_ratio = 0.1, .warmup_steps = 50, .steps = 2000};
  EXPECT_EQ(describe(schedule), "2,000 steps, 50 of warm-up, then 0.001 to 0.0001 by a cosine");
  schedule.shape = LrSchedule::Shape::kWsd;
  EXPECT_EQ(describe(schedule), "2,000 steps, 50 of warm-up, then 0.001 to 0.0001 in the last 200 by 1-sqrt");
  schedule.shape = LrSchedule::Shape::kConstant;
  EXPECT_EQ(describe(schedule), "2,000 steps, 50 of warm-up, then 0.001");
}

}  // namespace
}  // namespace fsdp::train
