#pragma once

#include <vector>

#include "plan/time/collective_time.h"
#include "plan/time/hardware.h"
#include "plan/time/step_script.h"
#include "plan/time/step_work.h"

namespace fsdp::plan::time {

// What each instruction of a step takes, alone, in milliseconds.
struct StepCosts {
  struct Unit {
    std::vector<Transfer> gather, gather_from_forward_group, gather_with_replicas;
    std::vector<Transfer> reduce, reduce_with_replicas;
  };
  std::vector<double> forward_ms, backward_ms;                    // of each passage, transfers of activations included
  std::vector<double> forward_transfer_ms, backward_transfer_ms;  // the part that those are; empty: none
  std::vector<Unit> units;
  double end_of_backward_ms = 0;
  double optimizer_ms = 0;  // clipping included

  // Of kStartGather and kStartReduce: the transfers that follow each other.
  const std::vector<Transfer>& transfers(const Instruction& instruction) const;
  // Of kCompute, kEndBackward and kOptimize; 0 for all others.
  double compute_ms(const Instruction& instruction) const;
  // Of it, in which a computation waits for activations of other ranks.
  double transfer_ms(const Instruction& instruction) const;
};

// Throws std::invalid_argument for what check() of either refuses, and for a dtype that the hardware does not have.
StepCosts price(const StepWork& work, const Hardware& hardware);

}  // namespace fsdp::plan::time
