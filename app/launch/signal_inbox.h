#pragma once

#include <chrono>
#include <optional>
#include <vector>

namespace fsdp::app {

// The signals that ask a job to stop: train::stop_signal_set(). From its construction on they, and CHLD, are blocked in
// this thread and those it starts; they wait here to be taken, even if the program was started with some of them
// ignored.
class SignalInbox {
 public:
  SignalInbox();  // throws Error(kInternal) if the system refuses
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  // For poll(): readable when a signal came or a child changed.
  int descriptor() const { return descriptor_; }
  // What came since the last call. CHLD is swallowed: it only wakes a poll.
  std::vector<int> take();
  // The first that came or comes within `limit`.
  std::optional<int> wait(std::chrono::milliseconds limit);

 private:
  int descriptor_;
};

}  // namespace fsdp::app
