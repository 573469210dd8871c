#pragma once

#include <vector>

#include "plan/time/hardware.h"
#include "plan/time/step_costs.h"
#include "plan/time/step_script.h"

namespace fsdp::plan::time {

// What carries out instructions one after the other: the program (a GPU's computing stream), and the lanes of gathers
// and of reductions (CommThreads::kUnified: all on kGathers).
enum class Stream { kCompute, kGathers, kReductions };

struct Span {
  Stream stream;
  Instruction instruction;
  double begin_ms = 0;
  double end_ms = 0;
  int cause = -1;  // index of the span at whose end this one could begin, or, of a wait, end; -1: the step's start

  double ms() const { return end_ms - begin_ms; }
};

// Of one step, from its first instruction to the optimizer's end. A wait is a span of the computing stream for as long
// as that stood still.
struct Timeline {
  std::vector<Span> spans;  // by their ends
  double step_ms = 0;
};

// How transfers and computation meet, beside what each costs.
struct Machine {
  Execution execution = Execution::kHostRunsAhead;
  Sharing sharing = Sharing::kEven;
  double slowdown_by_transfers = 0;

  static Machine of(const Hardware& hardware) {
    return {hardware.execution, hardware.sharing, hardware.slowdown_by_transfers};
  }
};

// Carries out `script`, which record_step(work) gave, event by event. On each stream what is first goes first. A
// reduction starts when its gradients are computed. A gather starts when its memory is free: with kProgramComputes,
// where the program starts it; with kHostRunsAhead, when what was computed with the slab's last owner is done (rotary
// slabs, fsdp/buffer/rotary_allocator.cpp).
Timeline simulate(const std::vector<Instruction>& script, const StepWork& work, const StepCosts& costs,
                  const Machine& machine);

}  // namespace fsdp::plan::time
