#include "plan/forecast/forecast.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <map>
#include <utility>
#include <vector>

#include "plan/axes.h"
#include "plan/forecast/pipeline_time.h"
#include "plan/forecast/planned_work.h"
#include "plan/rank_part.h"
#include "plan/time/collective_time.h"
#include "plan/time/compute_time.h"
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

// Of the ranks at a place along `pp`, whose stages compute one after the other.
Forecast forecast_place(const PlannedModel& model, const Setup& setup, const Network& network,
                        const time::Hardware& hardware, int64_t place) {
  Forecast result;
  result.hardware = with_rails(hardware, setup, network);
  result.microbatches = setup.work.microbatches;
  result.world = setup.world();
  result.stage = place;
  result.tokens_per_step = setup.tokens_per_step();
  result.work = planned_work(model, setup, network, kMostSimulated, place);
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

// What tells apart how long ranks along `pp` compute: ends of the model, and layers, which of a plain model are alike.
struct PlaceKind {
  bool has_start, has_end;
  std::vector<int64_t> layers;
  auto operator<=>(const PlaceKind&) const = default;
};

PlaceKind kind_of_place(const PlannedModel& model, const Setup& setup, int64_t place) {
  const models::DecoderConfig& config = *model.decoder;
  const bool are_alike = config.experts.count == 0 && config.sliding_window == 0 && setup.work.recompute_every == 1;
  const std::vector<models::BlockRange> all = stages_of(model, setup);
  PlaceKind kind{place == 0, place + 1 == setup.pipeline, {}};
  for (const models::BlockRange& layers :
       models::stages_of_rank(all, static_cast<int>(place), static_cast<int>(setup.pipeline)))
    kind.layers.push_back(are_alike ? layers.last - layers.first : layers.first);
  return kind;
}

// Of a microbatch, as each of the place's stages by itself takes it.
std::vector<StageTime> stage_times(const Forecast& place, int64_t stages_per_rank) {
  const time::StepCosts costs = time::price(place.work, place.hardware);
  std::vector<StageTime> times(static_cast<size_t>(stages_per_rank));
  double all = 0;
  for (size_t i = 0; i < place.work.passages.size(); ++i) {
    const time::Passage& passage = place.work.passages[i];
    StageTime& stage = times[static_cast<size_t>(passage.stage)];
    stage.forward += costs.forward_ms[i];
    stage.backward += costs.backward_ms[i];
    stage.weights += time::weight_gradients_ms(passage.backward, place.work.dtype, place.hardware);
    all += costs.forward_ms[i] + costs.backward_ms[i];
  }
  const double both = (place.step.step_ms - place.step.optimizer_ms) / static_cast<double>(place.microbatches);
  const double scale = both / std::max(all, 1e-12);
  for (StageTime& stage : times) stage = {scale * stage.forward, scale * stage.backward, scale * stage.weights};
  return times;
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
  if (setup.pipeline == 1) return forecast_place(model, setup, network, hardware, 0);
  std::map<PlaceKind, Forecast> kinds;  // whose ranks compute alike
  std::vector<StageTime> times(static_cast<size_t>(setup.num_stages()));
  for (int64_t place = 0; place < setup.pipeline; ++place) {
    const PlaceKind kind = kind_of_place(model, setup, place);
    auto own = kinds.find(kind);
    if (own == kinds.end()) own = kinds.emplace(kind, forecast_place(model, setup, network, hardware, place)).first;
    auto stage = static_cast<size_t>(place);
    for (const StageTime& each : stage_times(own->second, setup.stages_per_rank)) {
      times[stage] = each;
      stage += static_cast<size_t>(setup.pipeline);
    }
  }
  const auto slowest = std::max_element(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
    return a.second.step.step_ms < b.second.step.step_ms;
  });
  const time::LinkKind link = setup.stage_ranks() < setup.node_size ? time::LinkKind::kNode : time::LinkKind::kNetwork;
  const double message =
      time::message(stage_message_bytes(*model.decoder, setup), link, slowest->second.hardware).alone_ms();
  Forecast result = std::move(slowest->second);
  const double turns = result.step.step_ms - result.step.optimizer_ms;
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
