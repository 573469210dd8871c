#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace fsdp::comm {

// What a call is, in messages and in the log.
struct CallLabel {
  std::string op;     // "gather", "reduce", ...
  std::string unit;   // whose data; "" where there is none
  std::string cause;  // "aten::linear read 'layers.3.weight'", or ""
  int part = 0;       // which of the unit's parameter groups: their calls are ordered each for itself
};

enum class CallState { kIssued, kWaiting, kDone, kFailed };

struct CallRecord {
  int64_t number = 0;  // 1 for the first call of this process
  CallLabel label;
  int64_t bytes = 0;
  CallState state = CallState::kIssued;
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
};

// The last 256 calls of one process, kept for messages and dumps. Thread-safe.
class CallLog {
 public:
  static constexpr size_t kCapacity = 256;

  // Returns the call's number.
  int64_t issue(const CallLabel& label, int64_t bytes);
  void set_state(int64_t number, CallState state);

  // The calls this process is in, oldest first, then the one it was in last if that is over; empty if there was none.
  std::vector<CallRecord> current() const;
  // Of the call of this number; 0 where it is not kept any more.
  int64_t bytes_of(int64_t number) const;
  // Grows with every change; lets a publisher skip what did not move.
  int64_t revision() const;
  // One JSON object per line, oldest first.
  std::string dump_json() const;

 private:
  mutable std::mutex mutex_;
  std::vector<CallRecord> ring_;
  int64_t count_ = 0;
  int64_t latest_ = 0;  // issued or changed last
  int64_t revision_ = 0;
};

const char* name(CallState state);

}  // namespace fsdp::comm
