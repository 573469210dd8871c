// A training configuration as the planner sees it.
#pragma once

#include <cstdint>

#include "plan/report.h"
#include "train/config/config.h"
#include "train/model/model_choice.h"

namespace fsdp::train {

// The ranks of a run that need not exist.
struct RankCounts {
  int64_t world = 1;
  int64_t per_node = 1;
};

// The units and parameters that `fsdp train` would shard, frozen ones and adapters included. Local, without their
// memory. Throws Error(kUsage) as choose_tuning() does.
plan::PlannedModel planned_model(const Config& config, const ModelChoice& choice);

// The rest of it. On the CPU ranks of a node share memory, and one copy of gathered weights where a shard group lies in
// a node. Throws Error(kUsage) that names the key for a batch or a mesh that does not come out even.
plan::Setup planned_setup(const Config& config, const RankCounts& ranks);

}  // namespace fsdp::train
