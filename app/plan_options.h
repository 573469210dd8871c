// The arguments of `fsdp plan`, and what they ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/command_line.h"
#include "plan/reliability.h"
#include "plan/report.h"
#include "plan/search/search.h"

namespace fsdp::app {

// As given. What is not given keeps the value of the training configuration, or of the defaults there.
struct PlanOptions {
  std::string file;  // a training configuration
  std::string preset;
  std::string model;
  int64_t world = 0;  // 0: what the mesh gives
  std::string mesh;
  std::optional<std::string> strategy, precision, optimizer, recompute, reshard_after_forward, granularity, transport;
  std::optional<int64_t> sequence_length, microbatch, microbatches, recompute_every, prefetch_depth;
  int64_t node = 8;
  plan::Network network;
  std::string memory;  // of a rank
  std::string reserve;
  bool fit = false;
  bool why = false;
  plan::Reliability reliability;
  std::string checkpoint_rate, storage_rate;
  std::string picture;
  bool json = false;
  std::vector<std::string> overrides;  // --section.key=value
};

void add_plan_options(CLI::App& parser, PlanOptions& options);

struct PlanQuestion {
  plan::PlannedModel model;
  plan::SearchSpace space;  // its base is the setup that was asked for
  plan::Reliability reliability;
};

// Throws Error(kUsage) or io::Error(kUsage) that names the option, what was got and what would be legal.
PlanQuestion resolve(const PlanOptions& options);

}  // namespace fsdp::app
