#include "fsdp/comm/liveness/progress_note.h"

#include <algorithm>
#include <sstream>

#include "fsdp/base/number_text.h"

namespace fsdp::comm {
namespace {

constexpr char kFieldEnd = '\x1f';
constexpr char kLineEnd = '\x1e';

std::vector<std::string> split(const std::string& text, char end) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, end);) parts.push_back(part);
  return parts;
}

std::optional<CallState> parse_state(const std::string& text) {
  const auto number = parse_integer<int>(text);
  if (!number || *number < 0 || *number > static_cast<int>(CallState::kFailed)) return std::nullopt;
  return static_cast<CallState>(*number);
}

}  // namespace

ProgressNote ProgressNote::of(const CallLog& log) {
  using Clock = std::chrono::steady_clock;
  ProgressNote note;
  const auto now = Clock::now();
  Clock::duration since = Clock::duration::max();
  for (const CallRecord& record : log.current()) {
    since = std::min(since, now - record.end);
    note.calls.push_back({record.number, record.state, record.label, record.bytes});
  }
  if (!note.calls.empty()) note.since_last_call = std::chrono::duration_cast<std::chrono::milliseconds>(since);
  return note;
}

std::string ProgressNote::encode() const {
  std::ostringstream out;
  out << beat << kFieldEnd << has_left << kFieldEnd << since_last_call.count() << kLineEnd;
  for (const Progress& call : calls) {
    out << call.number << kFieldEnd << static_cast<int>(call.state) << kFieldEnd << call.label.op << kFieldEnd
        << call.label.unit << kFieldEnd << call.label.cause << kFieldEnd << call.bytes << kLineEnd;
  }
  return out.str();
}

ProgressNote ProgressNote::decode(const std::string& text) {
  ProgressNote note;
  const std::vector<std::string> lines = split(text, kLineEnd);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::vector<std::string> fields = split(lines[i], kFieldEnd);
    if (fields.size() < 3) continue;
    fields.resize(6);
    const auto number = parse_integer<int64_t>(fields[0]);
    if (i == 0) {
      note.beat = number.value_or(0);
      note.has_left = fields[1] == "1";
      note.since_last_call = std::chrono::milliseconds(parse_integer<int64_t>(fields[2]).value_or(0));
    } else if (const auto state = parse_state(fields[1]); number && state) {
      note.calls.push_back(
          {*number, *state, {fields[2], fields[3], fields[4]}, parse_integer<int64_t>(fields[5]).value_or(0)});
    }
  }
  return note;
}

const Progress* ProgressNote::last() const {
  const auto open =
      std::find_if(calls.begin(), calls.end(), [](const Progress& call) { return call.state == CallState::kWaiting; });
  if (open != calls.end()) return &*open;
  return calls.empty() ? nullptr : &calls.back();
}

std::string ProgressNote::last_call() const {
  const Progress* call = last();
  if (call == nullptr) return "";
  std::string text = call->label.op;
  if (!call->label.unit.empty()) text += " of '" + call->label.unit + "'";
  if (!call->label.cause.empty()) text += " (" + call->label.cause + ")";
  return text + ", call " + std::to_string(call->number);
}

std::string ProgressNote::describe() const {
  const Progress* call = last();
  if (call == nullptr) return "it made no call yet";
  if (call->state == CallState::kWaiting) return "it waits in " + last_call();
  if (call->state == CallState::kFailed) return "it gave up in " + last_call();
  return "its last call was " + last_call() + ", " + format_seconds(since_last_call) + " ago";
}

bool ProgressNote::gave_up() const {
  return std::any_of(calls.begin(), calls.end(), [](const Progress& call) { return call.state == CallState::kFailed; });
}

std::string format_seconds(std::chrono::milliseconds time) {
  std::ostringstream out;
  out.precision(time < std::chrono::seconds(10) ? 1 : 0);
  out << std::fixed << static_cast<double>(time.count()) / 1000 << " s";
  return out.str();
}

}  // namespace fsdp::comm
