#pragma once

#include <string>

namespace fsdp::app {

// Exit code of a rank that was asked to stop, has saved, and can be resumed (docs/clusters.md).
constexpr int kResumable = 75;

// How a process ended: with an exit code, or by a signal.
struct ExitStatus {
  bool by_signal = false;
  int number = 0;  // the exit code, or the signal

  bool operator==(const ExitStatus&) const = default;
};

// From what waitpid() says about a process that ended.
ExitStatus from_wait_status(int status);

// How well the end of one rank explains the end of the job, from least to most: a rank that finished; one that stopped
// on request; one that lost a peer, so that another one is to blame; one that failed of itself.
enum class Cause { kNone, kRequest, kLostPeer, kOwn };
Cause cause_of(const ExitStatus& status);

// What a shell calls the end: 128 + n for signal n.
int exit_code(const ExitStatus& status);

// "signal 9 (Killed)".
std::string describe_signal(int number);

// "exited with code 3", "was killed by signal 9 (Killed)", "stopped on request (exit code 75)".
std::string describe(const ExitStatus& status);

}  // namespace fsdp::app
