#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "models/config/stages.h"
#include "plan/memory.h"
#include "plan/model.h"
#include "plan/setup.h"
#include "plan/step_walk.h"
#include "plan/traffic.h"

namespace fsdp::plan {

// Beside the setup: what a report counts on.
struct ReportOptions {
  int64_t reserve = 0;  // bytes of a rank that are set aside
  Network network;
};

// What tells the ranks along `pp` apart.
struct StagePlan {
  std::vector<models::BlockRange> layers;  // of each of its stages
  int64_t parameters = 0;                  // tied ones in each stage that has them
  int64_t at_rest = 0;
  int64_t peak = 0;
};

// What a run of `model` as `setup` will take, on one rank unless said otherwise.
struct Report {
  std::string model;
  Setup setup;
  int64_t parameters = 0;
  int64_t active_parameters = 0;  // that a token is computed with; 0: not known
  int64_t units = 0;
  double flops_per_token = 0;     // forward and backward; 0 where unknown
  int64_t checkpoint_bytes = 0;   // main weights and optimizer of all ranks, each distinct element once
  std::vector<StagePlan> stages;  // by place along `pp`; one, where there is no pipeline
  int64_t stage = 0;              // place of the ranks that the rest is about
  MemoryPlan memory;
  TrafficPlan traffic;
  StepWalk step;
};

// A model with 80 blocks takes about a millisecond. Of the stages whose ranks need most. Throws io::Error(kUsage): see
// check(Setup).
Report make_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options = {});
// Of the ranks at that place along `pp`.
Report make_stage_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options, int64_t place);
// The same with activations that are known.
Report make_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options,
                   const Activations& activations);

// Tables for people; every key of the tables for programs: bytes as integers.
std::string to_text(const Report& report);
nlohmann::json to_json(const Report& report);

// "1 x 128 ranks, optim_grads_params, bf16, adamw; 1 x 1 sequences of 8192 tokens, recompute block".
std::string describe(const Setup& setup);

}  // namespace fsdp::plan
