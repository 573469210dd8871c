#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/report.h"
#include "plan/search/floor.h"

namespace fsdp::plan {

// What is searched. Everything else is as in `base`, whose batch (sequences of all ranks in a step) is kept.
struct SearchSpace {
  Setup base;
  int64_t memory = 0;                        // bytes that a rank has
  std::vector<PlannedPrecision> precisions;  // to try
  int64_t most_microbatch_sequences = 64;
  ReportOptions options;
  Machine machine;
};

struct Candidate {
  Setup setup;
  int64_t memory = 0;
  StepFloor floor;
  std::string reason;  // why it is not among the best; empty if it is
};

struct SearchResult {
  std::vector<Candidate> best;    // fast ones first: each takes less memory than all before it
  std::vector<Candidate> losers;  // fast ones first
  int64_t num_tried = 0;
};

// Every mesh whose groups fit the nodes, strategy, microbatch, recomputation, precision and rest between forward and
// backward; best are those that no other beats in both time and memory. Time is the step's floor, then the time of all
// communication (less of it is hidden more easily). Throws io::Error(kUsage) if nothing fits, with the smallest plan
// and by how much it misses.
SearchResult search(const PlannedModel& model, const SearchSpace& space);

// The part or resource that limits a plan, and changes of one thing that relieve it most, at most three.
struct Knob {
  std::string change;
  Setup setup;
  int64_t memory = 0;
  StepFloor floor;
};
struct Limits {
  bool memory_is_short = false;
  std::string limiting;  // in words
  StepFloor floor;
  std::vector<Knob> knobs;
};
Limits find_limits(const PlannedModel& model, const Report& report, const SearchSpace& space);

std::string to_text(const SearchResult& result, const SearchSpace& space);
std::string to_text(const Limits& limits, const Report& report, const SearchSpace& space);
nlohmann::json to_json(const SearchResult& result);
nlohmann::json to_json(const Limits& limits);

}  // namespace fsdp::plan
