#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "train/base/console.h"

namespace fsdp::app {

// "verify [########............]  40% | eta 00:00:04 | 1.2 GiB of 3.0 GiB | 512.0 MiB/s", when `seconds` have passed.
// What matters least comes last, where a narrow terminal cuts.
std::string transfer_line(const std::string& verb, int64_t done, int64_t total, double seconds);

// How far a verb has come that reads a known number of bytes: a bar and the time left, drawn in place on a terminal, a
// line every few seconds elsewhere, and nothing for what is over at once. Thread-safe but for its end, which takes the
// bar off the screen.
class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;

  // Of work of `total` bytes, drawn when `every` has passed since the start or the last time. `console` outlives it.
  ProgressLine(train::Console& console, std::string verb, int64_t total, Clock::duration every);
  // As often as people can read it.
  ProgressLine(train::Console& console, std::string verb, int64_t total);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void add(int64_t bytes);

 private:
  train::Console& console_;
  const std::string verb_;
  const int64_t total_;
  const Clock::time_point begin_;
  const Clock::duration every_;
  std::atomic<int64_t> done_ = 0;
  std::mutex mutex_;
  Clock::time_point next_;
  bool is_drawn_ = false;
};

}  // namespace fsdp::app
