#pragma once

#include <cstdint>
#include <vector>

#include "plan/activations.h"
#include "plan/call_ledger.h"
#include "plan/group.h"
#include "plan/model.h"
#include "plan/rank_part.h"
#include "plan/setup.h"

namespace fsdp::plan {

// What a rank holds, beside what rests, at one point of a step.
struct Moment {
  enum class Phase { kForward, kLoss, kBackward, kReduce };
  Phase phase;
  int64_t unit;  // index among the blocks; their number: the root
  int64_t gathered = 0;
  int64_t gradients = 0;  // collected and on their way, staging and partial sums included
  int64_t activations = 0;
  int64_t loss = 0;

  int64_t computed() const { return activations + loss; }
};

// A steady step of one rank, unit by unit. Gathers, reductions, bytes and peaks are those that Unit::counters() of the
// runtime shows; tests/plan/runtime_test.cpp compares them.
struct StepWalk {
  CallLedger calls;
  int64_t peak_unsharded_bytes = 0;
  int64_t peak_reduce_bytes = 0;  // without staging
  int64_t held_bytes = 0;         // by the default allocator, which gives no slab back
  std::vector<Moment> moments;    // of the first and the last microbatches

  // The moment at which most is held. Buffers are held all the time, so activations and the loss decide.
  const Moment& peak() const;
};

// `units` are plan_units(part.model, setup); `place` is the part's along `pp`. Of many microbatches some are walked,
// and one less, or one for each rank: these differ by what is neither first nor last.
StepWalk walk_step(const RankPart& part, int64_t place, const std::vector<std::vector<GroupPlan>>& units,
                   const Activations& activations, const Setup& setup);

}  // namespace fsdp::plan
