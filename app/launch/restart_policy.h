#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "app/launch/exit_status.h"

namespace fsdp::app {

struct RestartLimits {
  int max_restarts = 0;
  // Before the first restart. Doubled before each later one, up to a minute, or up to itself if that is longer.
  std::chrono::milliseconds backoff = std::chrono::seconds(1);
  // Three attempts in a row that end sooner than this and without progress are a crash loop.
  std::chrono::milliseconds min_uptime = std::chrono::seconds(10);
};

// An attempt that ended though nobody asked the launcher to stop.
struct EndedAttempt {
  ExitStatus status;                           // of the rank that explains the end
  std::chrono::milliseconds uptime{0};         // from the start of its ranks until that one ended
  std::optional<int64_t> committed_step = {};  // of the newest checkpoint that its ranks acknowledged
};

struct Verdict {
  bool restart = false;
  std::chrono::milliseconds wait{0};
  std::string text;  // "restart 1 of 3 in 1 s", or why there is none; empty if none was ever allowed
};

// Whether the same program, started again, may get further: after any signal, and after every exit code but those
// that name a mistake which stays (usage, data, checkpoint, non-finite numbers, memory) or a program that cannot run.
bool is_retryable(const ExitStatus& status);

// Decides after each attempt whether there is another one. Knows no processes and no clock.
class RestartPolicy {
 public:
  explicit RestartPolicy(RestartLimits limits) : limits_(limits) {}

  Verdict judge(const EndedAttempt& attempt);

 private:
  bool made_progress(const EndedAttempt& attempt);
  std::chrono::milliseconds next_wait() const;

  RestartLimits limits_;
  int restarts_ = 0;
  int barren_attempts_ = 0;                // in a row
  std::optional<int64_t> committed_step_;  // highest of all attempts
};

}  // namespace fsdp::app
