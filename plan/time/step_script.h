#pragma once

#include <string>
#include <vector>

#include "fsdp/schedule/static_order.h"
#include "plan/time/step_work.h"

namespace fsdp::plan::time {

enum class Action {
  kCompute,      // forward or backward of a passage
  kStartGather,  // "unshard" in traces
  kWaitGather,
  kReshard,
  kStartReduce,
  kWaitReduce,
  kEndBackward,  // ranks compare what they did
  kOptimize,
};

// Whom a gather or reduction is with.
enum class Reach {
  kShardGroup,
  kForwardGroup,       // a gather of what `reshard_after_forward = n` kept
  kShardsAndReplicas,  // a gather: first the replicas' parts; a reduction: then the replicas' sums
};

struct Instruction {
  Action action;
  int unit = -1;     // index into StepWork::units; -1: none
  int passage = -1;  // kCompute
  schedule::Pass pass = schedule::Pass::kForward;
  Reach reach = Reach::kShardGroup;
  int microbatch = 0;

  bool operator==(const Instruction&) const = default;
};

// What the runtime does in a step whose order it knows, in the order in which the program does it; nothing in it
// depends on how long anything takes. The runtime's own schedule::Turns decides;
// tests/promise/order/planned_order_test.cpp compares it with traces. Throws std::invalid_argument for what check()
// refuses.
std::vector<Instruction> record_step(const StepWork& work);

// As a trace names it: "unshard layers.0", "wait reduce root"; "forward layers.0" for computation.
std::string describe(const Instruction& instruction, const StepWork& work);

}  // namespace fsdp::plan::time
