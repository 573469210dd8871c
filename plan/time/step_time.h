#pragma once

#include <string>
#include <vector>

#include "plan/time/hardware.h"
#include "plan/time/simulation.h"
#include "plan/time/step_work.h"

namespace fsdp::plan::time {

struct UnitTime {
  std::string unit;
  double compute_ms = 0;
  double gather_ms = 0;  // in which its gathers were on their lane
  double reduce_ms = 0;
  double exposed_gather_ms = 0;  // for which the computing stream stood still
  double exposed_reduce_ms = 0;
};

// A stretch of the chain of events that the step could not have been shorter than, the later ones given.
struct PathPart {
  Action action;
  std::string name;  // "backward layers.3", "gather root", "optimizer"
  double begin_ms = 0;
  double end_ms = 0;
};

// Where the time of a step goes, in milliseconds. compute + optimizer + exposed_gather + exposed_reduce + other = step.
struct StepTime {
  double step_ms = 0;
  double compute_ms = 0;     // forward and backward, slowed down by transfers beside them
  double slowdown_ms = 0;    // the part of compute_ms that they cost
  double activation_ms = 0;  // the part of compute_ms that waits for activations of other ranks
  double optimizer_ms = 0;
  double exposed_gather_ms = 0;
  double exposed_reduce_ms = 0;
  double other_ms = 0;   // ranks compare what they did
  double gather_ms = 0;  // that the lanes were busy
  double reduce_ms = 0;
  double mfu = 0;  // model FLOPs over the peak of the products' dtype; 0 without StepWork::model_flops
  std::vector<UnitTime> units;
  std::vector<PathPart> critical_path;  // in the order of time
  Timeline timeline;
};

// Predicts a step whose order the runtime knows already. Throws std::invalid_argument for what check() of either
// refuses.
StepTime predict(const StepWork& work, const Hardware& hardware);

// The same with costs that are known, from measurements say. `flops_per_second`: the peak for MFU; 0: no MFU.
StepTime predict(const StepWork& work, const StepCosts& costs, const Machine& machine, double flops_per_second = 0);

// A table for people: totals, units (equal neighbours in one row), and what the critical path is made of.
std::string to_text(const StepTime& time);

}  // namespace fsdp::plan::time
