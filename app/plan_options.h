// The arguments of `fsdp plan`, and what they ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/command_line.h"
#include "plan/forecast/timeline_file.h"
#include "plan/reliability/reliability.h"
#include "plan/report.h"
#include "plan/search/search_space.h"

namespace fsdp::app {

// As given. What is not given keeps the value of the training configuration, or of the defaults there.
struct PlanOptions {
  std::string file;  // a training configuration
  std::string preset;
  std::string model;
  int64_t world = 0;  // 0: what the mesh gives
  std::string mesh;
  std::optional<std::string> pipeline_schedule, cp_exchange, strategy, precision, optimizer, recompute,
      reshard_after_forward, granularity, transport;
  std::optional<int64_t> stages_per_rank, sequence_length, microbatch, microbatches, recompute_every, prefetch_depth;
  std::optional<double> busiest_experts;
  int64_t node = 8;
  std::optional<int64_t> rails;
  plan::Network network;  // but for its rails
  std::string memory;     // of a rank
  std::string reserve;
  bool fit = false;
  bool why = false;
  plan::Reliability reliability;
  std::string checkpoint_rate, storage_rate;
  std::string picture;
  std::string hardware;  // a name or a file
  std::string timeline;
  std::optional<std::string> tokens;  // of a run
  bool json = false;
  std::vector<std::string> overrides;  // --section.key=value
};

void add_plan_options(CLI::App& parser, PlanOptions& options);

struct PlanQuestion {
  plan::PlannedModel model;
  plan::SearchSpace space;  // its base is the setup that was asked for; without hardware there is no forecast
  plan::Reliability reliability;
  plan::HardwareOrigin hardware_origin = plan::HardwareOrigin::kAssumed;
  std::string why_no_forecast;                   // where there is none
  std::optional<plan::TimelineFormat> timeline;  // of PlanOptions::timeline
  double tokens = 0;                             // of a run; 0: nobody asked
};

// Throws Error(kUsage) or io::Error(kUsage) that names the option, what was got and what would be legal.
PlanQuestion resolve(const PlanOptions& options);

}  // namespace fsdp::app
