// What others measured on clusters, predicted; docs/plan_time.md has the table and what is behind its worst rows.
#include "benchmarks/support/published_runs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan/time/step_time.h"

namespace fsdp::plan::time::published_runs_test {
namespace {

using benchmarks::PublishedRun;
using benchmarks::RunRole;

double error_of(const PublishedRun& run) {
  return predict(decoder_work(run.shape, run.setup), run.hardware).step_ms / run.step_ms() - 1;
}

struct Errors {
  double mean = 0, worst = 0;
  int count = 0;
};

template <class Predicate>
Errors errors_where(Predicate holds) {
  Errors errors;
  for (const PublishedRun& run : benchmarks::published_runs()) {
    if (!holds(run)) continue;
    const double error = std::abs(error_of(run));
    errors.mean += error;
    errors.worst = std::max(errors.worst, error);
    ++errors.count;
  }
  errors.mean /= errors.count;
  return errors;
}

bool is_a100(const PublishedRun& run) { return run.hardware.name == "a100-80gb"; }

// The four shares saw none of these.
TEST(PublishedRuns, OfOtherScalesAndModelsAreWithinFivePercentOnAverage) {
  const Errors errors =
      errors_where([](const PublishedRun& run) { return run.role == RunRole::kPredict && !is_a100(run); });
  EXPECT_EQ(errors.count, 40);
  EXPECT_LE(errors.mean, 0.05);
  EXPECT_LE(errors.worst, 0.12);
}

TEST(PublishedRuns, TheFittedOnesAreWithinThreePercentOnAverage) {
  const Errors errors = errors_where([](const PublishedRun& run) { return run.role == RunRole::kFit; });
  EXPECT_EQ(errors.count, 39);
  EXPECT_LE(errors.mean, 0.03);
}

// Nothing was fitted on this GPU.
TEST(PublishedRuns, OfAnotherGpuAreWithinTenPercentOnAverage) {
  const Errors errors = errors_where(is_a100);
  EXPECT_EQ(errors.count, 21);
  EXPECT_LE(errors.mean, 0.10);
  EXPECT_LE(errors.worst, 0.20);
}

}  // namespace
}  // namespace fsdp::plan::time::published_runs_test
