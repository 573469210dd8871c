#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "fsdp/comm/lane.h"

namespace fsdp::comm {

enum class StreamPriority { kNormal, kHigh };

// The lane of a device: a stream of its own. post() runs a job's stages at once, on the calling thread, with the lane's
// stream as the current one, so that what they enqueue comes after Job::after and after the jobs before; the end of a
// job is a point in that stream. Nothing here blocks the host, unless a transport does.
// A failure to enqueue is thrown by post(); what fails on the device is found by its transport.
// After: the all-gather and reduce-scatter streams of PyTorch FSDP2's FSDPCommContext.
class StreamLane : public Lane {
 public:
  // `device` has streams: not the CPU. A stream of the device's pool.
  StreamLane(c10::Device device, StreamPriority priority);

  Completion post(Job job) override;
  const c10::Stream& stream() const { return stream_; }

 private:
  void carry_out(const Job& job) const;

  c10::Stream stream_;
};

}  // namespace fsdp::comm
