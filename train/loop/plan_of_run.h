// The plan of the run that is about to start, and how it came out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/comm/connection.h"
#include "fsdp/fsdp.h"
#include "plan/forecast/forecast.h"
#include "plan/report.h"
#include "train/config/config.h"
#include "train/model/model_choice.h"

namespace fsdp::train {

// Of this rank's stage, with the ranks, the transport and the copies of weights that this world has. Local.
plan::Report plan_run(const Config& config, const ModelChoice& choice, const World& world);

// How long steps of a run take, and what they tell of it.
class RunForecast {
 public:
  using WithBusyExperts = std::function<plan::Forecast(double busiest_experts)>;
  RunForecast(plan::Forecast planned, WithBusyExperts again) : planned_(std::move(planned)), again_(std::move(again)) {}

  const plan::Forecast& planned() const { return planned_; }
  // A step's share of rows, as in plan::Work.
  void note_step(double busiest_experts) { busiest_.push_back(busiest_experts); }
  // compare_with_forecast(), and where experts were unequally busy what their share in these steps makes of the plan.
  std::string compare(double step_seconds) const;

 private:
  plan::Forecast planned_;
  WithBusyExperts again_;
  std::vector<double> busiest_;  // by step
};

// How long its steps take on output.hardware; nothing where that is empty. Local. Throws Error(kUsage) or
// io::Error(kUsage) naming it where there is no such hardware, or no prediction for it.
std::optional<RunForecast> forecast_run(const Config& config, const ModelChoice& choice, const plan::Report& plan);

// The same over that network, of the one rank of a simulated world that exists. Without output.hardware what computing
// takes is measured first, which takes two seconds; nothing on a GPU then. Local.
std::optional<plan::Forecast> forecast_simulated(const Config& config, const ModelChoice& choice,
                                                 const plan::Report& plan, const comm::FabricModel& network);

// What a dry run prints: the tables of both.
std::string dry_run_text(const Config& config, const ModelChoice& choice, const World& world);

// ", optimizer 19.0 MiB".
std::string planned_optimizer(const plan::Report& plan);

// "plan: a step takes 412.3 ms on this machine: ...".
std::string describe_forecast(const plan::Forecast& forecast);

// How long steps took beside that.
std::string compare_with_forecast(const plan::Forecast& forecast, double step_seconds);

// "plan: a rank holds ... in buffers, ... of activations: 1.20 GiB at most, ...".
std::string describe_plan(const plan::Report& plan);

// What this rank holds after some steps, beside what was planned, by part. Local.
std::string compare_with_plan(const plan::Report& plan, const Unit& root, int64_t optimizer_bytes);
// How far all ranks together are from that. COLLECTIVE over the world.
std::string compare_all_ranks(const plan::Report& plan, const Unit& root, int64_t optimizer_bytes, const World& world);
// Calls and bytes of the last step, since Unit::reset_counters(), beside those that were planned.
std::string compare_traffic(const plan::Report& plan, const Counters& counters);

}  // namespace fsdp::train
