#pragma once

#include <chrono>

namespace fsdp::comm {

// How long the calling thread has waited for other ranks, in all its collectives so far. A program's own time in a step
// is what the step took less what this grew by meanwhile.
std::chrono::nanoseconds waited_by_this_thread();

// Counts the time from construction to destruction as waiting, once where scopes are nested.
class WaitClock {
 public:
  WaitClock();
  ~WaitClock();
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;

 private:
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace fsdp::comm
