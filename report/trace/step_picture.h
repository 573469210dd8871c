#pragma once

#include <string>
#include <vector>

#include "report/trace/step_split.h"

namespace fsdp::report {

struct TracedStep {
  const RankTrace* trace = nullptr;
  StepSplit split;
};

// A step as a picture: for each rank a row for what its program did, one for gathers and one for reductions, time from
// left to right, and the longest waits below. SVG without references to anything else; readable on a light and on a
// dark page, and without colours. Each bar says what it is when the pointer rests on it. The steps are the same one.
std::string draw_step(const std::vector<TracedStep>& ranks, const std::string& title);

}  // namespace fsdp::report
