#pragma once

#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "fsdp/base/file_descriptor.h"

namespace fsdp::train {

// SIGUSR1 is Slurm's warning; SIGHUP comes when a terminal is closed.
inline constexpr std::array<int, 4> kStopSignals = {SIGTERM, SIGUSR1, SIGINT, SIGHUP};

// Those that are requests here: all but a SIGHUP that is ignored, as under nohup.
sigset_t stop_signal_set();

// Requests to stop, as the system brings them. A thread waits for them and answers; the training loop asks between
// steps for the first, and all ranks agree. Another one but SIGUSR1 that comes a second after the first, or later, ends
// the process at once, as if nobody had waited for it. A SIGHUP that is ignored, as under nohup, stays ignored.
//
// There is no handler, because no thread that computes may run one: oneDNN's product of fp32 matrices moves the stack
// pointer into the heap while it works, and what the system puts there for a handler overwrites what lies below.
class StopSignal {
 public:
  // How a request is answered: by the end of the process; by its being noted; by that and a line on the standard error.
  enum class Answer { kEnd, kNote, kNoteAndTell };

  // Blocks the signals in the calling thread, and so in those that it starts from now on; others of the process would
  // still take them as before. Answers with kEnd.
  StopSignal();
  // The signals stay blocked: one that comes when all is done shall not change how the process ends.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // From now on.
  void answer_with(Answer answer) { answer_ = answer; }

  // The first signal that was noted, if any, of all that have come by now.
  std::optional<int> received();

 private:
  using Clock = std::chrono::steady_clock;

  void wait_for_requests();
  void take_pending();
  void take(int number);
  [[noreturn]] void end_process(int number);

  sigset_t signals_ = stop_signal_set();
  FileDescriptor arrivals_;  // can be read when there are any
  FileDescriptor end_;       // can be read when the thread is to end
  std::atomic<Answer> answer_{Answer::kEnd};
  std::mutex mutex_;
  std::optional<int> first_;
  std::optional<Clock::time_point> first_demand_;  // when the first but SIGUSR1 came
  std::thread thread_;
};

// "SIGTERM"
std::string signal_name(int number);

}  // namespace fsdp::train
