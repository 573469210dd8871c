#pragma once

#include <string>
#include <vector>

#include "plan/time/step_costs.h"
#include "plan/time/step_time.h"

namespace fsdp::plan::time::testing {

// A network of 1 MB a millisecond, without latency; computation undisturbed.
inline Hardware plain_hardware(Execution execution = Execution::kProgramComputes) {
  Hardware hardware;
  hardware.name = "plain";
  hardware.execution = execution;
  hardware.peak_flops = {{Dtype::kFp32, 1e12}, {Dtype::kBf16, 1e12}};
  hardware.memory_bytes_per_second = 1e12;
  hardware.node = hardware.network = {1e9, 0};
  hardware.hops = Hops::kNone;
  return hardware;
}

// Units that are used one after the other, on two ranks, each a root of its own. Milliseconds of each.
struct Chain {
  std::vector<double> forward, backward, gather, reduce;
  schedule::Schedule schedule;
  Strategy strategy = Strategy::kOptimGradsParams;
  int microbatches = 1;

  StepWork work() const {
    StepWork work;
    work.shard_ranks = 2;
    work.schedule = schedule;
    work.strategy = strategy;
    work.microbatches = microbatches;
    for (size_t i = 0; i < forward.size(); ++i) {
      // Half of a buffer is received, at 1 MB a millisecond.
      const auto bytes = [](double ms) { return static_cast<int64_t>(2e6 * ms); };
      work.units.push_back({"unit" + std::to_string(i), -1, bytes(gather[i]), bytes(reduce[i])});
      work.passages.push_back({static_cast<int>(i), 0, {}, {}, BackwardReads::kWeights, Arrival::kSomeGradients});
    }
    return work;
  }

  StepCosts costs(const Hardware& hardware) const {
    StepCosts costs = price(work(), hardware);
    costs.forward_ms = forward;
    costs.backward_ms = backward;
    costs.end_of_backward_ms = costs.optimizer_ms = 0;
    return costs;
  }

  StepTime predict(const Hardware& hardware = plain_hardware()) const {
    return time::predict(work(), costs(hardware), Machine::of(hardware));
  }
};

}  // namespace fsdp::plan::time::testing
