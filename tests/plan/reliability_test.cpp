// The best interval against the expected time of a run, minimised and simulated here.
#include "plan/reliability/reliability.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "io/base/error.h"
#include "models/config/presets.h"

namespace fsdp::plan::reliability_test {
namespace {

Report report_of(int64_t world) {
  plan::Setup setup;
  setup.shards = world;
  setup.precision = parse_planned_precision("bf16");
  return make_report(decoder_model("70b", models::find_preset("llama-3.1-70b")->config), setup);
}

// Work per time of a job that is simulated: segments of `interval` and `pause` are repeated until one ends without a
// failure; a failure also costs `restart`, which may fail, too.
double simulated_goodput(double interval, double pause, double restart, double mtbf, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> failure(1 / mtbf);
  double time = 0;
  constexpr int kSegments = 200000;
  for (int segment = 0; segment < kSegments; ++segment) {
    double needed = interval + pause;
    for (double next = failure(random); next < needed; next = failure(random)) {
      time += next;
      needed = restart + interval + pause;
    }
    time += needed;
  }
  return kSegments * interval / time;
}

TEST(PlanReliability, CheckpointsHoldTwelveBytesPerParameter) {
  const ReliabilityPlan plan = plan_reliability(report_of(1280), {});
  EXPECT_EQ(plan.checkpoint_bytes, 12 * int64_t{70553706496});
  EXPECT_NEAR(static_cast<double>(plan.largest_file) * 1280, static_cast<double>(plan.checkpoint_bytes), 1280);
  EXPECT_DOUBLE_EQ(plan.write_seconds, static_cast<double>(plan.largest_file) / 2e9);
  Reliability slow;
  slow.storage_bytes_per_s = 10e9;
  EXPECT_DOUBLE_EQ(plan_reliability(report_of(1280), slow).write_seconds, 12 * 70553706496.0 / 10e9);
}

// Llama 3: 419 unexpected interruptions in 54 days of 16,384 GPUs.
TEST(PlanReliability, TheDefaultRateIsThatOfLlama3) {
  const ReliabilityPlan plan = plan_reliability(report_of(16384), {});
  EXPECT_NEAR(plan.failures_per_day, 419.0 / 54, 1e-9);
}

TEST(PlanReliability, NoOtherIntervalIsBetter) {
  for (const auto& [pause, mtbf_hours, restart] :
       {std::tuple(30.0, 3.0, 600.0), {300.0, 1.0, 900.0}, {5.0, 40.0, 60.0}}) {
    Reliability options;
    options.rank_mtbf_hours = mtbf_hours * 128;
    options.snapshot_seconds = pause;
    options.restart_seconds = restart;
    const ReliabilityPlan plan = plan_reliability(report_of(128), options);
    const double mtbf = mtbf_hours * 3600;
    const auto goodput = [&](double interval) {
      return interval / (mtbf * std::exp(restart / mtbf) * (std::exp((interval + pause) / mtbf) - 1));
    };
    double best = 0;
    for (double interval = 1; interval < 5 * mtbf; interval *= 1.001) best = std::max(best, goodput(interval));
    EXPECT_NEAR(plan.goodput, best, 1e-4) << pause << " " << mtbf_hours;
    EXPECT_NEAR(plan.young_seconds, std::sqrt(2 * pause * mtbf), 1e-6);
    constexpr uint64_t kSeed = 61;
    EXPECT_NEAR(plan.goodput, simulated_goodput(plan.daly_seconds, pause, restart, mtbf, kSeed), 0.005) << kSeed;
  }
}

TEST(PlanReliability, NonsenseIsRefused) {
  Reliability options;
  options.rank_mtbf_hours = 0;
  EXPECT_THROW(plan_reliability(report_of(8), options), io::Error);
  options = {};
  options.restart_seconds = -1;
  EXPECT_THROW(plan_reliability(report_of(8), options), io::Error);
  options = {};
  options.checkpoint_bytes_per_s = NAN;
  EXPECT_THROW(plan_reliability(report_of(8), options), io::Error);
}

}  // namespace
}  // namespace fsdp::plan::reliability_test
