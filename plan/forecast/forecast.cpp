#include "plan/forecast/forecast.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "plan/axes.h"
#include "plan/forecast/pipeline_time.h"
#include "plan/forecast/planned_work.h"
#include "plan/time/collective_time.h"
#include "plan/time/step_costs.h"

namespace fsdp::plan {
namespace {

using time::Action;
using time::StepTime;
using time::UnitTime;

PathShares shares_of(const std::vector<time::PathPart>& path) {
  PathShares shares;
  for (const time::PathPart& part : path) {
    const double ms = part.end_ms - part.begin_ms;
    switch (part.action) {
      case Action::kCompute:
        shares.compute += ms;
        break;
      case Action::kStartGather:
        shares.gather += ms;
        break;
      case Action::kStartReduce:
        shares.reduce += ms;
        break;
      case Action::kOptimize:
        shares.optimizer += ms;
        break;
      default:
        shares.other += ms;
    }
  }
  return shares;
}

// `times` more microbatches like the one by which `four` exceeds `three`.
void extend(double& four, double three, double times) { four = std::max(0.0, four + times * (four - three)); }

void extend(StepTime& four, const StepTime& three, double times) {
  constexpr std::array kTotals = {&StepTime::activation_ms, &StepTime::step_ms,           &StepTime::compute_ms,
                                  &StepTime::slowdown_ms,   &StepTime::exposed_gather_ms, &StepTime::exposed_reduce_ms,
                                  &StepTime::other_ms,      &StepTime::gather_ms,         &StepTime::reduce_ms};
  constexpr std::array kOfUnits = {&UnitTime::compute_ms, &UnitTime::gather_ms, &UnitTime::reduce_ms,
                                   &UnitTime::exposed_gather_ms, &UnitTime::exposed_reduce_ms};
  for (double StepTime::*field : kTotals) extend(four.*field, three.*field, times);
  for (size_t i = 0; i < four.units.size(); ++i) {
    for (double UnitTime::*field : kOfUnits) extend(four.units[i].*field, three.units[i].*field, times);
  }
}

void extend(PathShares& four, const PathShares& three, double times) {
  extend(four.compute, three.compute, times);
  extend(four.gather, three.gather, times);
  extend(four.reduce, three.reduce, times);
  extend(four.other, three.other, times);
}

Forecast forecast_stage(const PlannedModel& model, const Setup& setup, const Network& network,
                        const time::Hardware& hardware, int64_t stage) {
  Forecast result;
  result.hardware = with_rails(hardware, setup, network);
  result.microbatches = setup.work.microbatches;
  result.world = setup.world();
  result.stage = stage;
  result.tokens_per_step = setup.tokens_per_step();
  result.work = planned_work(model, setup, network, kMostSimulated, stage);
  result.step = time::predict(result.work, result.hardware);
  result.path = shares_of(result.step.critical_path);
  const int64_t more = setup.work.microbatches - kMostSimulated;
  if (more <= 0) return result;
  time::StepWork shorter = result.work;
  shorter.microbatches = kMostSimulated - 1;
  const StepTime three = time::predict(shorter, result.hardware);
  const auto times = static_cast<double>(more);
  extend(result.step, three, times);
  extend(result.path, shares_of(three.critical_path), times);
  const double flops = result.work.model_flops / kMostSimulated * static_cast<double>(setup.work.microbatches);
  result.step.mfu = flops / (result.seconds() * result.hardware.flops(result.work.dtype));
  return result;
}

// Of a microbatch, as the stage by itself takes it.
StageTime stage_time(const Forecast& stage) {
  const time::StepCosts costs = time::price(stage.work, stage.hardware);
  double forward = 0, backward = 0;
  for (const double ms : costs.forward_ms) forward += ms;
  for (const double ms : costs.backward_ms) backward += ms;
  const double both = (stage.step.step_ms - stage.step.optimizer_ms) / static_cast<double>(stage.microbatches);
  const double share = forward / std::max(forward + backward, 1e-12);
  return {share * both, (1 - share) * both};
}

}  // namespace

std::string Forecast::limiting() const {
  const double communication = path.gather + path.reduce;
  if (communication > std::max(path.compute, path.optimizer))
    return step.exposed_gather_ms >= step.exposed_reduce_ms ? "gather" : "reduce";
  if (path.stages > std::max(path.compute, path.optimizer)) return "stages";
  return path.optimizer > path.compute ? "optimizer" : "compute";
}

Forecast forecast(const PlannedModel& model, const Setup& setup, const Network& network,
                  const time::Hardware& hardware) {
  if (setup.stages == 1) return forecast_stage(model, setup, network, hardware, 0);
  std::vector<Forecast> stages;
  for (int64_t stage = 0; stage < setup.stages; ++stage)
    stages.push_back(forecast_stage(model, setup, network, hardware, stage));
  const auto slowest = std::max_element(stages.begin(), stages.end(), [](const Forecast& a, const Forecast& b) {
    return a.step.step_ms < b.step.step_ms;
  });
  std::vector<StageTime> times;
  for (const Forecast& stage : stages) times.push_back(stage_time(stage));
  const time::LinkKind link = setup.stage_ranks() < setup.node_size ? time::LinkKind::kNode : time::LinkKind::kNetwork;
  const double message = time::message(stage_message_bytes(*model.decoder, setup), link, slowest->hardware).alone_ms();
  const StageTime own = times[static_cast<size_t>(slowest - stages.begin())];
  const double turns = static_cast<double>(setup.work.microbatches) * (own.forward + own.backward);
  Forecast result = std::move(*slowest);
  result.stage_wait_ms = std::max(0.0, pipeline_ms(setup.order, setup.pipeline_shape(), times, message) - turns);
  result.path.stages = result.stage_wait_ms;
  result.step.mfu *= result.step.step_ms / (result.step.step_ms + result.stage_wait_ms);
  result.step.step_ms += result.stage_wait_ms;
  return result;
}

RunLength run_length(const Forecast& forecast, double tokens) {
  RunLength length;
  length.tokens = tokens;
  length.steps = std::ceil(tokens / static_cast<double>(forecast.tokens_per_step));
  length.hours = length.steps * forecast.seconds() / 3600;
  length.rank_hours = length.hours * static_cast<double>(forecast.world);
  return length;
}

}  // namespace fsdp::plan
