#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/trace/trace_file.h"

namespace fsdp::report {

// What a moment of the program's thread was spent on.
enum class Spent {
  kForward,
  kBackward,
  kOptimizer,
  kGatherWait,
  kReduceWait,
  kSums,  // of small numbers over all ranks: gradient norm, agreement
  kData,
  kRest
};
inline constexpr int kNumSpent = 8;
const char* name(Spent spent);
// Whether the program stood still.
bool is_wait(Spent spent);

struct SpentTime {
  double begin_ms = 0, end_ms = 0;
  Spent spent = Spent::kRest;
  std::string unit;
};

// Why a rank waited, over a step.
struct Cause {
  std::string what;  // "gather of model.layers.3"
  double ms = 0;
  int times = 0;
  std::string detail;  // what the transfer did meanwhile
};

// One step of one rank, cut into pieces that follow each other without a gap.
struct StepSplit {
  int64_t step = 0;
  double begin_ms = 0, end_ms = 0;
  std::vector<SpentTime> pieces;
  double ms[kNumSpent] = {};
  std::vector<Cause> causes;  // the longest first

  double length() const { return end_ms - begin_ms; }
  double operator[](Spent spent) const { return ms[static_cast<int>(spent)]; }
};

std::vector<int64_t> steps_of(const RankTrace& trace);
// Throws Error(kUsage) that names the steps there are.
StepSplit split_step(const RankTrace& trace, int64_t step);

// What each rank spent, and the five longest causes of its waits, as text.
std::string to_text(const StepSplit& split, int rank);

}  // namespace fsdp::report
