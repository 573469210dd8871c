#include "train/data/prefetch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>

namespace fsdp::train {
namespace {

// Batches that hold where they are from. A place can be made to fail, or to wait.
class FakeSource : public StepSource {
 public:
  int64_t num_microbatches(int64_t) const override { return 2; }
  int64_t num_targets(int64_t step) const override { return read_step(place_of(step)).num_targets; }
  Batch microbatch(int64_t step, int64_t micro) const override {
    return read_step(place_of(step)).microbatches[static_cast<size_t>(micro)];
  }
  int64_t position(int64_t step, int64_t micro) const override { return consumed(step) + micro; }
  int64_t consumed(int64_t step) const override { return first + 10 * step; }
  StepBatches read_step(const StepPlace& place) const override {
    const int64_t consumed = place.consumed;
    ++num_reads;
    if (consumed == failing_place) throw std::runtime_error("place " + std::to_string(consumed));
    if (consumed == announced_place) announced.count_down();
    StepBatches step;
    step.num_targets = consumed + 1;
    for (int64_t micro = 0; micro < 2; ++micro) {
      step.microbatches.push_back({at::full({1, 1}, consumed + micro, at::kLong), at::zeros({1}, at::kLong), {}});
    }
    return step;
  }

  int64_t first = 0;
  int64_t failing_place = -1;
  int64_t announced_place = -1;
  mutable std::latch announced{1};
  mutable std::atomic<int> num_reads{0};
};

int64_t content(const Batch& batch) { return batch.input_ids_BT.item<int64_t>(); }

TEST(Prefetch, GivesWhatTheSourceGives) {
  const FakeSource source;
  Prefetch prefetch(source);
  EXPECT_EQ(prefetch.num_microbatches(0), 2);
  for (const int64_t step : {0, 1, 1, 2, 3, 2, 7, 8, 0}) {
    EXPECT_EQ(prefetch.num_targets(step), 10 * step + 1);
    for (const int64_t micro : {0, 1, 0}) EXPECT_EQ(content(prefetch.microbatch(step, micro)), 10 * step + micro);
    EXPECT_EQ(prefetch.position(step, 1), 10 * step + 1);
  }
}

TEST(Prefetch, ReadsTheNextStepWhileThisOneComputes) {
  FakeSource source;
  source.announced_place = 10;
  Prefetch prefetch(source);
  prefetch.microbatch(0, 0);
  source.announced.wait();  // nobody has asked for step 1
  EXPECT_EQ(content(prefetch.microbatch(1, 0)), 10);
}

TEST(Prefetch, EachStepIsReadOnce) {
  const FakeSource source;
  {
    Prefetch prefetch(source);
    for (int64_t step = 0; step < 50; ++step) {
      prefetch.num_targets(step);
      prefetch.microbatch(step, 0);
      prefetch.microbatch(step, 1);
    }
  }
  EXPECT_GE(source.num_reads, 50);
  EXPECT_LE(source.num_reads, 51);
}

TEST(Prefetch, FollowsAMovedCursor) {
  FakeSource source;
  Prefetch prefetch(source);
  EXPECT_EQ(content(prefetch.microbatch(4, 0)), 40);
  source.first = 1000;  // as after a rollback: other data for the same steps
  EXPECT_EQ(content(prefetch.microbatch(4, 0)), 1040);
  EXPECT_EQ(content(prefetch.microbatch(5, 0)), 1050);
}

TEST(Prefetch, AnErrorBelongsToTheStepThatNeedsTheBatch) {
  FakeSource source;
  source.failing_place = 20;
  Prefetch prefetch(source);
  prefetch.microbatch(0, 0);
  prefetch.microbatch(1, 0);
  EXPECT_THROW(prefetch.num_targets(2), std::runtime_error);
  EXPECT_THROW(prefetch.num_targets(2), std::runtime_error);
  EXPECT_EQ(content(prefetch.microbatch(3, 1)), 31);
}

TEST(Prefetch, WaitingIsMeasured) {
  const FakeSource source;
  Prefetch prefetch(source);
  prefetch.microbatch(0, 0);
  EXPECT_GT(prefetch.take_wait_ms(), 0);  // nothing was there
  prefetch.microbatch(0, 1);
  EXPECT_EQ(prefetch.take_wait_ms(), 0);
}

}  // namespace
}  // namespace fsdp::train
