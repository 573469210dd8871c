#pragma once

#include <string>

#include "report/run_files.h"

namespace fsdp::report {

// Memory of rank 0 over the steps of one run, by what it holds, one layer on the other, and the process's peak. SVG,
// then a list of the layers with their last sizes; empty if the run has no figures of memory.
std::string draw_memory(const RunRecord& run, int place);

}  // namespace fsdp::report
