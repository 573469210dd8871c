#pragma once

#include <string>

#include "plan/time/simulation.h"
#include "plan/time/step_work.h"

namespace fsdp::plan::time {

// The timeline in Chrome's format, for ui.perfetto.dev or chrome://tracing, with the names and threads that
// fsdp::profile::Session writes, so that a plan and a run can be looked at side by side.
std::string to_chrome_trace(const Timeline& timeline, const StepWork& work);

}  // namespace fsdp::plan::time
