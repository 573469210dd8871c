#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/report.h"

namespace fsdp::plan {

// One bar of a picture: a plan's memory, and what it is called.
struct MemoryBar {
  std::string title;
  MemoryPlan memory;
};

// Stacked bars, all in one scale, with a legend of parts and bytes, as an SVG file that needs nothing else and is
// readable on light and dark ground. `limit`: bytes that a rank has, drawn as a line; 0: none.
std::string memory_picture(const std::vector<MemoryBar>& bars, int64_t limit);

}  // namespace fsdp::plan
