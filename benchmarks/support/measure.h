// Clocks and memory of this process, for the benchmarks.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "fsdp/base/trace.h"

namespace fsdp::benchmarks {

// Milliseconds since construction or the last lap().
class Stopwatch {
 public:
  double lap() {
    const auto now = Clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return ms;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
};

// What all threads of this process used so far.
struct Usage {
  double cpu_ms = 0;        // user and system
  int64_t page_faults = 0;  // served without the disk: first touches of fresh memory
};
Usage process_usage();

struct Memory {
  int64_t resident_bytes = 0;
  int64_t peak_bytes = 0;  // since the start or the last reset_peak_memory()
};
Memory process_memory();

// Linux only; where the kernel refuses, the peak stays that of the whole run.
void reset_peak_memory();

// Milliseconds to copy `bytes` between buffers larger than a cache.
double copy_ms(int64_t bytes);

// Milliseconds under each name, summed over the units.
std::map<std::string, double> sum_by_name(const TraceCollector& trace);

}  // namespace fsdp::benchmarks
