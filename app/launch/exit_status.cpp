#include "app/launch/exit_status.h"

#include <sys/wait.h>

#include <cstring>

#include "fsdp/base/error.h"

namespace fsdp::app {

ExitStatus from_wait_status(int status) {
  if (WIFSIGNALED(status)) return {.by_signal = true, .number = WTERMSIG(status)};
  return {.by_signal = false, .number = WEXITSTATUS(status)};
}

Cause cause_of(const ExitStatus& status) {
  if (status.by_signal) return Cause::kOwn;
  switch (status.number) {
    case 0:
      return Cause::kNone;
    case kResumable:
      return Cause::kRequest;
    case static_cast<int>(ErrorCode::kCommunication):
      return Cause::kLostPeer;
    default:
      return Cause::kOwn;
  }
}

int exit_code(const ExitStatus& status) { return status.by_signal ? 128 + status.number : status.number; }

std::string describe_signal(int number) { return "signal " + std::to_string(number) + " (" + strsignal(number) + ")"; }

std::string describe(const ExitStatus& status) {
  if (status.by_signal) return "was killed by " + describe_signal(status.number);
  if (status.number == kResumable) return "stopped on request (exit code " + std::to_string(kResumable) + ")";
  return "exited with code " + std::to_string(status.number);
}

}  // namespace fsdp::app
