#include "fsdp/schedule/schedule.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace fsdp::schedule {
namespace {

TEST(Schedule, Fsdp1sArguments) {
  const Schedule pre = Schedule::fsdp1(true, BackwardPrefetch::kPre, true);
  EXPECT_EQ(pre.depth_forward(), 1);
  EXPECT_EQ(pre.depth_backward(), 1);
  EXPECT_EQ(pre.max_gathers_in_flight, 2);
  const Schedule none = Schedule::fsdp1(false, BackwardPrefetch::kNone, false);
  EXPECT_EQ(none.depth_forward(), 0);
  EXPECT_EQ(none.depth_backward(), 0);
  EXPECT_EQ(none.max_gathers_in_flight, 0);
}

TEST(Schedule, OnlyARecordedOrderLooksAhead) {
  for (const Schedule& schedule : {Schedule::on_demand(), Schedule::delayed_release(2)}) {
    EXPECT_EQ(schedule.depth_forward(), 0);
    EXPECT_EQ(schedule.depth_backward(), 0);
  }
  EXPECT_EQ(Schedule::static_order(3).depth_forward(), 3);
}

TEST(Schedule, NonsenseNamesTheField) {
  const auto message_of = [](const Schedule& schedule) -> std::string {
    try {
      check(schedule);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message_of({}), "no error");
  EXPECT_EQ(message_of(Schedule::static_order(-2)), "[schedule] forward_depth: got -2, expected at least 0.");
  EXPECT_EQ(message_of(Schedule::static_order(1, -1)), "[schedule] max_bytes: got -1, expected at least 0.");
  EXPECT_EQ(message_of(Schedule::delayed_release(0)), "[schedule] delay: got 0, expected at least 1.");
}

TEST(Schedule, SaysWhatItIs) {
  Schedule schedule = Schedule::fsdp1(false, BackwardPrefetch::kPost, true);
  schedule.threads = CommThreads::kUnified;
  schedule.release = ReleaseOrder::kReshardFirst;
  EXPECT_EQ(describe(schedule),
            "static_order(0, 1), backward prefetch after the gradients, at most 2 gathers in flight, reshard before "
            "reduce, unified");
}

}  // namespace
}  // namespace fsdp::schedule
