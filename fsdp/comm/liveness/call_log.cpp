#include "fsdp/comm/liveness/call_log.h"

#include <sstream>

#include "fsdp/base/json_text.h"

namespace fsdp::comm {
namespace {

double seconds(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

const char* name(CallState state) {
  switch (state) {
    case CallState::kIssued:
      return "issued";
    case CallState::kWaiting:
      return "waiting";
    case CallState::kDone:
      return "done";
    case CallState::kFailed:
      return "failed";
  }
  return "unknown";
}

int64_t CallLog::issue(const CallLabel& label, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t number = ++count_;
  if (ring_.size() < kCapacity) ring_.resize(ring_.size() + 1);
  const auto now = std::chrono::steady_clock::now();
  ring_[static_cast<size_t>(number - 1) % kCapacity] = {number, label, bytes, CallState::kIssued, now, now};
  latest_ = number;
  ++revision_;
  return number;
}

void CallLog::set_state(int64_t number, CallState state) {
  const std::lock_guard lock(mutex_);
  CallRecord& record = ring_[static_cast<size_t>(number - 1) % kCapacity];
  if (record.number != number) return;  // overwritten: more than 256 calls were in flight since
  record.state = state;
  record.end = std::chrono::steady_clock::now();
  latest_ = number;
  ++revision_;
}

int64_t CallLog::bytes_of(int64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto place = static_cast<size_t>(number - 1) % kCapacity;
  return place < ring_.size() && ring_[place].number == number ? ring_[place].bytes : 0;
}

std::vector<CallRecord> CallLog::current() const {
  const std::lock_guard lock(mutex_);
  std::vector<CallRecord> records;
  const auto is_open = [](const CallRecord& record) {
    return record.state == CallState::kIssued || record.state == CallState::kWaiting;
  };
  const int64_t size = static_cast<int64_t>(ring_.size());
  for (int64_t number = count_ - size + 1; number <= count_; ++number) {
    const CallRecord& record = ring_[static_cast<size_t>(number - 1) % kCapacity];
    if (is_open(record)) records.push_back(record);
  }
  if (latest_ > count_ - size) {
    const CallRecord& last = ring_[static_cast<size_t>(latest_ - 1) % kCapacity];
    if (latest_ > 0 && !is_open(last)) records.push_back(last);
  }
  return records;
}

int64_t CallLog::revision() const {
  const std::lock_guard lock(mutex_);
  return revision_;
}

std::string CallLog::dump_json() const {
  const std::lock_guard lock(mutex_);
  std::ostringstream out;
  out.precision(6);
  out << std::fixed;
  const int64_t size = static_cast<int64_t>(ring_.size());
  for (int64_t number = count_ - size + 1; number <= count_; ++number) {
    const CallRecord& record = ring_[static_cast<size_t>(number - 1) % kCapacity];
    out << "{\"number\": " << record.number << ", \"op\": " << json_text(record.label.op)
        << ", \"unit\": " << json_text(record.label.unit) << ", \"cause\": " << json_text(record.label.cause)
        << ", \"bytes\": " << record.bytes << ", \"state\": \"" << name(record.state)
        << "\", \"begin_s\": " << seconds(record.begin) << ", \"end_s\": " << seconds(record.end) << "}\n";
  }
  return out.str();
}

}  // namespace fsdp::comm
