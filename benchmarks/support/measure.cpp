#include "benchmarks/support/measure.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

namespace fsdp::benchmarks {

Usage process_usage() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  return {ms(usage.ru_utime) + ms(usage.ru_stime), usage.ru_minflt};
}

Memory process_memory() {
  Memory memory;
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    long kib = 0;
    if (std::sscanf(line.c_str(), "VmRSS: %ld kB", &kib) == 1) memory.resident_bytes = kib * 1024;
    if (std::sscanf(line.c_str(), "VmHWM: %ld kB", &kib) == 1) memory.peak_bytes = kib * 1024;
  }
  return memory;
}

void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

double copy_ms(int64_t bytes) {
  constexpr int64_t kPiece = int64_t{64} << 20;
  const std::vector<char> from(kPiece, 1);
  std::vector<char> to(kPiece, 2);
  Stopwatch watch;
  for (int64_t left = bytes; left > 0; left -= kPiece) {
    std::memcpy(to.data(), from.data(), static_cast<size_t>(std::min(left, kPiece)));
  }
  return watch.lap();
}

std::map<std::string, double> sum_by_name(const TraceCollector& trace) {
  std::map<std::string, double> sums;
  for (const TraceEvent& event : trace.events()) {
    sums[event.name] += std::chrono::duration<double, std::milli>(event.end - event.begin).count();
  }
  return sums;
}

}  // namespace fsdp::benchmarks
