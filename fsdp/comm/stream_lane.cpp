#include "fsdp/comm/stream_lane.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "fsdp/base/backstage.h"
#include "fsdp/base/trace.h"

namespace fsdp::comm {
namespace {

class StreamWork : public Completion::Work {
 public:
  StreamWork(StreamPoint end, const c10::Stream& poster) : end_(std::move(end)), poster_(poster) {}

  void wait() override { end_.hold_back_current(); }

  // The memory of the job goes back to the stream that posted it.
  void abandon() noexcept override {
    try {
      end_.hold_back(poster_);
    } catch (const std::exception&) {
      // The device is gone, and its work with it.
    }
  }

 private:
  StreamPoint end_;
  c10::Stream poster_;
};

// For profilers: what is enqueued meanwhile belongs to the job. There is no trace event, since the host's times would
// say nothing about the device's.
class Shown {
 public:
  explicit Shown(const Job& job) : range_(show_range(job.name.c_str(), job.unit)) {}
  ~Shown() { hide_range(range_); }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

 private:
  uint64_t range_;
};

}  // namespace

StreamLane::StreamLane(c10::Device device, StreamPriority priority)
    : stream_(c10::impl::VirtualGuardImpl(device.type())
                  .getStreamFromGlobalPool(device, priority == StreamPriority::kHigh)) {}

Completion StreamLane::post(Job job) {
  const Backstage backstage;
  const Shown shown(job);
  const c10::Stream poster = current_stream(stream_.device());
  const bool has_points = std::any_of(job.after.begin(), job.after.end(), [](const auto& p) { return p.defined(); });
  if (!has_points) job.after.push_back(StreamPoint::end_of(poster));
  for (const StreamPoint& point : job.after) point.hold_back(stream_);
  try {
    carry_out(job);
  } catch (...) {
    // What was enqueued before the failure still writes.
    StreamPoint::end_of(stream_).hold_back(poster);
    throw;
  }
  return Completion(std::make_unique<StreamWork>(StreamPoint::end_of(stream_), poster));
}

void StreamLane::carry_out(const Job& job) const {
  const c10::StreamGuard guard(stream_);
  job.first().wait();
  for (const Stage& start : job.next) start().wait();
  if (job.finish) job.finish();
}

}  // namespace fsdp::comm
