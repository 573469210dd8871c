#pragma once

#include <cstdint>
#include <string>

#include "plan/report.h"

namespace fsdp::plan {

// What a long run meets. Rates are of one rank with its share of host and network; failures are independent.
struct Reliability {
  // Llama 3: 419 unexpected interruptions in 54 days of 16,384 GPUs (Grattafiori et al. 2024, section 3.3.4).
  double rank_mtbf_hours = 54.0 * 24 * 16384 / 419;
  double checkpoint_bytes_per_s = 2e9;  // that one rank writes, all at the same time
  double storage_bytes_per_s = 0;       // of all ranks together; 0: no limit
  double snapshot_seconds = 0;          // that a step waits with asynchronous checkpoints; 0: it waits for the write
  double restart_seconds = 600;         // from a failure to the first new step
};

// Seconds, and shares of the time that is paid for.
struct ReliabilityPlan {
  int64_t checkpoint_bytes = 0;  // of all ranks: main weights and optimizer, each distinct element once
  int64_t largest_file = 0;      // of one rank
  double write_seconds = 0;      // until a checkpoint is on disk
  double pause_seconds = 0;      // that a step waits for
  double mtbf_seconds = 0;       // of the whole job
  double young_seconds = 0;      // best time between checkpoints, first order: sqrt(2 pause MTBF)
  double daly_seconds = 0;       // higher order
  double goodput = 0;            // expected share of time in steps that count, with daly_seconds
  double lost_per_failure = 0;   // mean work that is done again, restart included
  double failures_per_day = 0;
};

// After: Young 1974; Daly 2006, "A higher order estimate of the optimum checkpoint interval", equations 20 and 37.
// Throws io::Error(kUsage) for rates and times that make no sense.
ReliabilityPlan plan_reliability(const Report& report, const Reliability& options);

std::string to_text(const ReliabilityPlan& plan);
nlohmann::json to_json(const ReliabilityPlan& plan);

}  // namespace fsdp::plan
