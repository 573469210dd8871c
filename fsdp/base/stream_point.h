#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>

namespace fsdp {

// The stream of `device`, which is not the CPU, that work of this thread goes to.
c10::Stream current_stream(c10::Device device);

// A place in the work of a device's stream: the end of what the stream had been given when the point was made. Other
// streams can be made to come after it; the host never waits for it. Empty where there are no streams (the CPU), and
// where there is nothing to wait for. Copies are the same point.
// After: the events of PyTorch FSDP2's FSDPCommContext.
class StreamPoint {
 public:
  StreamPoint() = default;
  // In the current stream of `device`; empty for the CPU.
  static StreamPoint now(c10::Device device);
  static StreamPoint end_of(const c10::Stream& stream);

  bool defined() const { return mark_ != nullptr; }
  // What `stream` is given from now on runs after this point.
  void hold_back(const c10::Stream& stream) const;
  // The same for the current stream of the point's device.
  void hold_back_current() const;

 private:
  struct Mark;
  std::shared_ptr<const Mark> mark_;
};

}  // namespace fsdp
