#pragma once

#include <optional>
#include <string>

namespace fsdp::train {

// Requests to stop, as the system brings them: SIGTERM, SIGUSR1 (Slurm's warning) and SIGINT. The handler sets a flag
// and nothing else; the training loop asks for it between steps, and all ranks agree. A SIGTERM or SIGINT that
// comes a second after the first, or later, ends the process at once. One per process.
class StopSignal {
 public:
  StopSignal();
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
