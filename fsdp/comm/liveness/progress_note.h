#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/comm/liveness/call_log.h"

namespace fsdp::comm {

// What one rank published of a call it is in, or was in last.
struct Progress {
  int64_t number = 0;
  CallState state = CallState::kDone;
  CallLabel label;
  int64_t bytes = 0;
};

// What a rank tells the others of itself about once a second: that it lives, and what it is doing.
struct ProgressNote {
  int64_t beat = 0;       // another one in each note
  bool has_left = false;  // it closed its connection by itself
  std::chrono::milliseconds since_last_call{0};
  std::vector<Progress> calls;  // those it is in, then the one before; empty: it made none

  // Of the calls in `log`, now.
  static ProgressNote of(const CallLog& log);
  // The inverse of encode(); of "" an empty note.
  static ProgressNote decode(const std::string& text);
  std::string encode() const;

  // The call it is in, or was in last: "gather of 'a' (aten::linear reads 'a.weight'), call 7"; "" if there was none.
  std::string last_call() const;
  // What it is doing: "it waits in gather of 'a' (...), call 7", "its last call was ..., 312 s ago".
  std::string describe() const;
  bool gave_up() const;

 private:
  const Progress* last() const;
};

// "0.3 s", "312 s".
std::string format_seconds(std::chrono::milliseconds time);

}  // namespace fsdp::comm
