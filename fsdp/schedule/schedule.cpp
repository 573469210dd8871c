#include "fsdp/schedule/schedule.h"

#include <stdexcept>

namespace fsdp::schedule {

namespace {

void expect_at_least(int64_t value, int64_t least, const char* field) {
  if (value >= least) return;
  throw std::invalid_argument(std::string("[schedule] ") + field + ": got " + std::to_string(value) +
                              ", expected at least " + std::to_string(least) + ".");
}

}  // namespace

Schedule Schedule::static_order(int depth, int64_t max_bytes) {
  Schedule schedule;
  schedule.forward_depth = depth;
  schedule.backward_depth = depth;
  schedule.max_bytes = max_bytes;
  return schedule;
}

Schedule Schedule::delayed_release(int delay) {
  Schedule schedule;
  schedule.kind = Kind::kDelayedRelease;
  schedule.delay = delay;
  return schedule;
}

Schedule Schedule::on_demand() {
  Schedule schedule;
  schedule.kind = Kind::kOnDemand;
  return schedule;
}

Schedule Schedule::fsdp1(bool forward_prefetch, BackwardPrefetch backward_prefetch, bool limit_all_gathers) {
  Schedule schedule;
  schedule.forward_depth = forward_prefetch ? 1 : 0;
  schedule.backward = backward_prefetch;
  schedule.max_gathers_in_flight = limit_all_gathers ? 2 : 0;
  return schedule;
}

int Schedule::depth_backward() const {
  if (kind != Kind::kStaticOrder || backward == BackwardPrefetch::kNone) return 0;
  return backward_depth;
}

void check(const Schedule& schedule) {
  expect_at_least(schedule.forward_depth, 0, "forward_depth");
  expect_at_least(schedule.backward_depth, 0, "backward_depth");
  expect_at_least(schedule.max_bytes, 0, "max_bytes");
  expect_at_least(schedule.max_gathers_in_flight, 0, "max_gathers_in_flight");
  expect_at_least(schedule.delay, schedule.kind == Kind::kDelayedRelease ? 1 : 0, "delay");
}

std::string describe(const Schedule& schedule) {
  std::string text;
  switch (schedule.kind) {
    case Kind::kStaticOrder:
      text = "static_order(" + std::to_string(schedule.depth_forward()) + ", " +
             std::to_string(schedule.depth_backward()) + ")";
      break;
    case Kind::kDelayedRelease:
      text = "delayed_release(" + std::to_string(schedule.delay) + ")";
      break;
    case Kind::kOnDemand:
      text = "on_demand";
      break;
  }
  if (schedule.backward == BackwardPrefetch::kPost) text += ", backward prefetch after the gradients";
  if (schedule.max_gathers_in_flight > 0) {
    text += ", at most " + std::to_string(schedule.max_gathers_in_flight) + " gathers in flight";
  }
  if (schedule.release == ReleaseOrder::kReshardFirst) text += ", reshard before reduce";
  if (schedule.threads == CommThreads::kUnified) text += ", unified";
  return text;
}

}  // namespace fsdp::schedule
