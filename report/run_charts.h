#pragma once

#include <vector>

#include "report/chart.h"
#include "report/run_files.h"

namespace fsdp::report {

// Loss of each step, smoothed, with held-out losses and what happened to each run.
Chart loss_chart(const std::vector<RunRecord>& runs);

// The others: gradient norm, learning rate, speed, waits. Those without a figure draw nothing.
std::vector<Chart> other_charts(const std::vector<RunRecord>& runs);

}  // namespace fsdp::report
