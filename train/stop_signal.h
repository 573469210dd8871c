#pragma once

#include <signal.h>

#include <array>
#include <optional>
#include <string>

namespace fsdp::train {

// SIGUSR1 is Slurm's warning; SIGHUP comes when a terminal is closed.
inline constexpr std::array<int, 4> kStopSignals = {SIGTERM, SIGUSR1, SIGINT, SIGHUP};

// Requests to stop, as the system brings them. The handler sets a flag and nothing else; the training loop asks for it
// between steps, and all ranks agree. Another one but SIGUSR1 that comes a second after the first, or later, ends the
// process at once, as if nobody had handled it. A SIGHUP that is ignored, as under nohup, stays ignored. One per
// process.
class StopSignal {
 public:
  // What the first request is answered with: nothing, where a launcher does, or a line on the standard error.
  enum class Answer { kNothing, kTell };

  explicit StopSignal(Answer answer = Answer::kNothing);
  // Puts back what was there before.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The first signal that came, if any.
  std::optional<int> received() const;
};

// "SIGTERM"
std::string signal_name(int number);

}  // namespace fsdp::train
