#include "train/loop/event_log.h"

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>

#include "train/base/metrics.h"

namespace fsdp::train {
namespace {

// Texts of errors may hold bytes of others, which need not be UTF-8.
std::string event_line(const nlohmann::ordered_json& event) {
  return event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json event_of(EventKind kind, int64_t step, const std::string& text) {
  const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
  return {{"schema", kLogSchema}, {"time", now.count()}, {"event", name(kind)}, {"step", step}, {"text", text}};
}

}  // namespace

const char* name(EventKind kind) {
  switch (kind) {
    case EventKind::kStarted:
      return "started";
    case EventKind::kResumed:
      return "resumed";
    case EventKind::kCommitted:
      return "committed";
    case EventKind::kSaveFailed:
      return "save_failed";
    case EventKind::kSpike:
      return "spike";
    case EventKind::kSkipped:
      return "skipped";
    case EventKind::kRolledBack:
      return "rolled_back";
    case EventKind::kPassingError:
      return "passing_error";
    case EventKind::kSlowRank:
      return "slow_rank";
    case EventKind::kStopped:
      return "stopped";
    case EventKind::kEnded:
      return "ended";
    case EventKind::kFailed:
      return "failed";
  }
  return "?";
}

void EventLog::open(const std::filesystem::path& path) { file_.emplace(path, std::numeric_limits<int64_t>::max()); }

void EventLog::tell(EventKind kind, int64_t step, const std::string& text) {
  console_.line(text);
  keep(kind, step, text);
}

void EventLog::keep(EventKind kind, int64_t step, const std::string& text) {
  if (file_) file_->append(event_line(event_of(kind, step, text)));
}

void EventLog::keep_start(const Start& start) {
  if (!file_) return;
  nlohmann::ordered_json event = event_of(EventKind::kStarted, start.step, start.text);
  event["steps"] = start.steps;
  event["ranks"] = start.ranks;
  event["parameters"] = start.parameters;
  file_->append(event_line(event));
}

}  // namespace fsdp::train
