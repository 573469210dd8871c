#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/verbs.h"

namespace fsdp::app {

// What `fsdp bench strategies` measures.
struct StrategyQuestion {
  std::string file;     // training configuration; "": the defaults
  Arguments overrides;  // "--section.key=value"
  int ranks = 2;
  int steps = 20;
};

// One strategy, measured by training a few steps with it. Figures are NaN where there are none.
struct StrategyRun {
  std::string name;                               // "zero3"
  std::string failure;                            // why there are no figures; "": there are
  double step_ms = 0, tokens_per_s = 0, mfu = 0;  // medians, the first steps left out
  double held_bytes = 0;                          // of rank 0: weights, gradients, optimizer and buffers, at most
  double planned_held = 0;                        // the same as `fsdp plan` has it
  double peak_bytes = 0;                          // of rank 0's process
  double received = 0;                            // by rank 0 in a step
  double planned_received = 0;
  std::vector<double> losses;  // of each step
};

// Trains in a folder of its own, as ranks of a launcher. Throws Error if that cannot be started.
StrategyRun run_strategy(const StrategyQuestion& question, const std::string& name);

// The largest distance of two curves of losses, over the steps that both have.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

std::string to_text(const std::vector<StrategyRun>& runs, const StrategyQuestion& question);
nlohmann::ordered_json to_json(const std::vector<StrategyRun>& runs, const StrategyQuestion& question);
std::string to_svg(const std::vector<StrategyRun>& runs, const StrategyQuestion& question);

}  // namespace fsdp::app
