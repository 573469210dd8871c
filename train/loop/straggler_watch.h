#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/comm/liveness/straggler.h"
#include "fsdp/fsdp.h"
#include "train/base/metrics.h"

namespace fsdp::train {

// Which ranks compute slower than the others, found by comparing what each step took less what it waited.
class StragglerWatch {
 public:
  // `every`: steps between two comparisons; 0: never.
  StragglerWatch(const World& world, int64_t every);

  // Local. Around a step.
  void begin_step();
  void end_step();
  // COLLECTIVE. Compares if it is time to. What changed, the same on every rank.
  std::vector<std::string> compare();
  // Of the steps that were compared last; nothing before, and of a rank alone. Local.
  std::optional<SlowestRank> slowest() const { return slowest_; }

 private:
  const World& world_;
  int64_t every_;
  StragglerReport report_;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::nanoseconds waited_before_{0};
  std::optional<SlowestRank> slowest_;
  std::vector<double> compute_ms_;  // since the last comparison
};

}  // namespace fsdp::train
