#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/run_files.h"

namespace fsdp::report {

// A run in a few figures; NaN where it has none.
struct Summary {
  int64_t steps_done = 0;
  double steps_planned = 0;
  double loss = 0;     // mean of the last tenth of the steps, at most 20
  double heldout = 0;  // the last one
  double best_heldout = 0;
  double tokens = 0;
  double tokens_per_s = 0, mfu = 0, step_ms = 0;  // medians
  double data_ms = 0, exposed_ms = 0;             // means, per step
  double peak_bytes = 0;
  double seconds = 0;  // from the first to the last event, breaks included
  double ranks = 0, parameters = 0;
  int64_t resumes = 0, skips = 0, rollbacks = 0;
};

// The median, of an even number of values the upper one; NaN of none.
double middle_of(std::vector<double> values);

Summary summarize(const RunRecord& run);

// "running", and what colour it deserves: good, bad, odd or calm.
struct StateText {
  const char* text;
  const char* style;
};
StateText describe(RunState state);

// The settings in which runs differ, but for where they write: the key and one value for each run, "" where it has
// none.
struct Difference {
  std::string key;
  std::vector<std::string> values;
};
std::vector<Difference> differences(const std::vector<const std::vector<Setting>*>& runs);

}  // namespace fsdp::report
