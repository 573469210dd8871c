#include "app/launch/restart_policy.h"

#include <algorithm>

#include "app/launch/duration_text.h"
#include "fsdp/base/error.h"

namespace fsdp::app {
namespace {

constexpr int kCrashLoop = 3;  // attempts
constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(1);

std::string count_of(int number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

}  // namespace

bool is_retryable(const ExitStatus& status) {
  if (status.by_signal) return true;
  switch (status.number) {
    case static_cast<int>(ErrorCode::kUsage):
    case static_cast<int>(ErrorCode::kData):
    case static_cast<int>(ErrorCode::kCheckpoint):
    case static_cast<int>(ErrorCode::kNonFinite):
    case static_cast<int>(ErrorCode::kMemory):
    case 126:  // a shell's words for a program that is not executable,
    case 127:  // or not there
      return false;
    default:
      return true;
  }
}

Verdict RestartPolicy::judge(const EndedAttempt& attempt) {
  barren_attempts_ = made_progress(attempt) ? 0 : barren_attempts_ + 1;
  const std::string used = std::to_string(restarts_) + " of " + std::to_string(limits_.max_restarts);
  if (limits_.max_restarts == 0) return {};
  if (!is_retryable(attempt.status)) {
    return {.text =
                "not restarted, because code " + std::to_string(attempt.status.number) + " does not go away by itself"};
  }
  if (restarts_ == limits_.max_restarts) return {.text = "no restart is left (" + used + " used)"};
  if (barren_attempts_ == kCrashLoop) {
    return {.text = "gave up with " + count_of(limits_.max_restarts - restarts_, "restart") + " left, because " +
                    std::to_string(kCrashLoop) + " attempts in a row ended within " + in_seconds(limits_.min_uptime) +
                    " and without a new checkpoint"};
  }
  const auto wait = next_wait();
  ++restarts_;
  return {.restart = true,
          .wait = wait,
          .text = "restart " + std::to_string(restarts_) + " of " + std::to_string(limits_.max_restarts) + " in " +
                  in_seconds(wait)};
}

bool RestartPolicy::made_progress(const EndedAttempt& attempt) {
  const bool committed = attempt.committed_step > committed_step_;  // nothing is less than any step
  committed_step_ = std::max(committed_step_, attempt.committed_step);
  return committed || attempt.uptime >= limits_.min_uptime;
}

std::chrono::milliseconds RestartPolicy::next_wait() const {
  const auto longest = std::max(kLongestWait, limits_.backoff);
  auto wait = limits_.backoff;
  for (int i = 0; i < restarts_ && wait < longest && wait.count() > 0; ++i) wait *= 2;
  return std::min(wait, longest);
}

}  // namespace fsdp::app
