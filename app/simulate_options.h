#pragma once

#include <optional>
#include <string>

#include "app/verbs.h"
#include "train/loop/simulated_run.h"

namespace fsdp::app {

// What `fsdp train --help` says of them.
std::string simulate_help();

// Takes --simulate-NAME VALUE and --simulate-NAME=VALUE out of `arguments`. Nothing where there are none. Throws
// Error(kUsage) that names the option: unknown ones, values that are none, network options without --simulate-world,
// and a process that a launcher started as one of several ranks.
std::optional<train::SimulatedWorld> take_simulated_world(Arguments& arguments);

}  // namespace fsdp::app
