#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp::report {

// Something that took time on one rank, as fsdp::profile::Session names it.
struct TraceSpan {
  double begin_ms = 0, end_ms = 0;
  std::string kind;    // "forward", "wait gather", "gather", "step"
  std::string unit;    // of the model; of "step" its number
  std::string thread;  // "program", "gather thread"

  double length() const { return end_ms - begin_ms; }
};

struct RankTrace {
  int rank = 0;
  std::vector<TraceSpan> spans;  // by their begin
};

// The trace.json of a run (train.profile_steps), by rank. Throws Error(kUsage) where there is none, io::Error(kData) or
// Error(kData) for a file that is no such trace.
std::vector<RankTrace> read_trace(const std::filesystem::path& path);

}  // namespace fsdp::report
