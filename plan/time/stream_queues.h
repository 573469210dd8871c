#pragma once

#include <vector>

#include "plan/time/simulation.h"

namespace fsdp::plan::time {

// A script as what each stream has to do. The first part of a simulation.
struct StreamQueues {
  struct Computation {
    Instruction instruction;
    double ms = 0;
    int waits_for = -1;  // a job
  };
  struct Job {
    Instruction instruction;
    Stream lane;
    std::vector<Transfer> transfers;  // that take time
    int after = 0;                    // so many computations come before it
  };
  std::vector<Computation> computations;
  std::vector<Job> jobs;  // of both lanes, in the order in which the program posts them
};

StreamQueues make_queues(const std::vector<Instruction>& script, const StepWork& work, const StepCosts& costs,
                         Execution execution);

}  // namespace fsdp::plan::time
