#include "train/model/parallelize.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/train/model/tuning_run.h"

namespace fsdp::train {
namespace {

struct Outcome {
  std::vector<double> losses;
  int64_t gathers = 0;
};

Outcome train_alone(const std::string& whole_weights) {
  Outcome outcome;
  testing::run_ranks(1, [&](const World& world) {
    testing::TuningPlan plan;
    plan.shard.whole_weights = whole_weights;
    testing::TuningRun run(world, plan);
    for (int step = 0; step < testing::kTuningSteps; ++step) outcome.losses.push_back(run.step());
    outcome.gathers = run.model().root.counters().gathers;
  });
  return outcome;
}

// Alone: nothing is gathered, or everything as on many ranks, with the same bits.
TEST(ShardOptionsOfConfig, WholeWeightsAreCopiedWhereAsked) {
  const Outcome in_place = train_alone("in_place"), copied = train_alone("copied");
  EXPECT_EQ(copied.losses, in_place.losses);
  EXPECT_EQ(in_place.gathers, 0);
  EXPECT_GT(copied.gathers, 0);
}

}  // namespace
}  // namespace fsdp::train
