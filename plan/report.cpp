#include "plan/report.h"

#include <utility>

#include "plan/axes.h"
#include "plan/rank_part.h"

namespace fsdp::plan {
namespace {

int64_t checkpoint_bytes_of(const PlannedModel& model, const Setup& setup) {
  const int64_t average = setup.averages == Averages::kEma ? kAverageBytes : 0;
  int64_t bytes = 0;
  const auto add = [&](const PlannedUnit& unit, UnitRole role) {
    for (const PlannedParameter& parameter : unit.parameters) {
      const auto size = static_cast<int64_t>(io::item_size(parameter.dtype));
      bytes += parameter.numel() * size;
      if (parameter.trains) bytes += state_bytes(setup.optimizer, parameter, role) + parameter.numel() * average;
    }
  };
  for (const PlannedUnit& block : model.blocks) add(block, UnitRole::kBlock);
  add(model.root, UnitRole::kRoot);
  return bytes;
}

std::string rest_text(const Setup& setup) {
  if (!setup.reshards()) return "whole";
  return "in groups of " + std::to_string(setup.forward_group());
}

std::string stages_text(const Setup& setup) {
  const std::string several = setup.stages_per_rank > 1 ? " x " + std::to_string(setup.stages_per_rank) : "";
  return std::to_string(setup.pipeline) + several + " stages (" + std::string(name(setup.order)) + ") of ";
}

std::string context_text(const Setup& setup) {
  const bool is_auto = setup.context_exchange == parallel::ContextExchange::kAuto;
  return ", cp " + std::to_string(setup.context) + " of the shards" +
         (is_auto ? std::string() : " (" + std::string(name(setup.context_exchange)) + ")");
}

struct StageReport {
  Report report;
  StagePlan summary;
};

StageReport report_at(const PlannedModel& model, const Setup& setup, const ReportOptions& options, int64_t place,
                      const Activations& activations) {
  const RankPart part = rank_part(model, setup, place);
  const std::vector<std::vector<GroupPlan>> units = plan_units(part.model, setup);
  Report report;
  report.model = model.name;
  report.setup = setup;
  report.parameters = model.num_parameters();
  report.units = model.num_units();
  if (model.decoder) {
    report.active_parameters = models::num_active_parameters(*model.decoder);
    report.flops_per_token = models::flops_per_token(*model.decoder, setup.work.sequence_length);
  }
  report.checkpoint_bytes = checkpoint_bytes_of(model, setup);
  report.step = walk_step(part, place, units, activations, setup);
  add_axis_calls(model, part, setup, report.step.calls);
  report.memory = plan_memory(part, units, report.step, options.reserve, setup);
  report.traffic = plan_traffic(units, report.step.calls, setup, options.network);
  Setup uncut = setup;
  uncut.tensor = uncut.experts = 1;
  const int64_t parameters =
      setup.pipeline > 1 ? rank_part(model, uncut, place).model.num_parameters() : report.parameters;
  StagePlan summary{{}, parameters, report.memory.at_rest(), report.memory.total()};
  for (const PlannedStage& stage : part.stages) summary.layers.push_back(stage.layers);
  return {std::move(report), std::move(summary)};
}

Report put_together(std::vector<StageReport> stages, int64_t shown) {
  Report report = std::move(stages[static_cast<size_t>(shown)].report);
  report.stage = shown;
  for (const StageReport& each : stages) report.stages.push_back(each.summary);
  return report;
}

}  // namespace

Report make_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options) {
  check(setup);
  check_axes(model, setup);
  const Activations activations = plan_activations(model, setup);
  int64_t worst = 0;
  std::vector<StageReport> stages;
  for (int64_t place = 0; place < setup.pipeline; ++place) {
    stages.push_back(report_at(model, setup, options, place, activations));
    if (stages.back().summary.peak > stages[static_cast<size_t>(worst)].summary.peak) worst = place;
  }
  return put_together(std::move(stages), worst);
}

Report make_stage_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options, int64_t place) {
  Report report = make_report(model, setup, options);
  if (report.stage == place) return report;
  std::vector<StagePlan> stages = std::move(report.stages);
  report = report_at(model, setup, options, place, plan_activations(model, setup)).report;
  report.stages = std::move(stages);
  report.stage = place;
  return report;
}

Report make_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options,
                   const Activations& activations) {
  check(setup);
  check_axes(model, setup);
  std::vector<StageReport> stages;
  stages.push_back(report_at(model, setup, options, 0, activations));
  return put_together(std::move(stages), 0);
}

std::string describe(const Setup& setup) {
  const Work& work = setup.work;
  std::string text = (setup.pipeline > 1 ? stages_text(setup) : std::string()) + std::to_string(setup.replicas) +
                     " x " + std::to_string(setup.shards) + " ranks" +
                     (setup.tensor > 1 ? " x tp " + std::to_string(setup.tensor) : std::string()) +
                     (setup.context > 1 ? context_text(setup) : std::string()) +
                     (setup.experts > 1 ? ", ep " + std::to_string(setup.experts) + " of the shards" : std::string()) +
                     ", " + std::string(fsdp::name(setup.strategy)) + ", " + name(setup.precision) + ", " +
                     std::string(name(setup.optimizer));
  if (setup.averages == Averages::kEma) text += " with averages of the weights";
  if (setup.reshard_after_forward) text += ", weights rest between forward and backward " + rest_text(setup);
  if (setup.state != StatePlace::kMemory) text += ", state " + std::string(name(setup.state));
  text += "; " + std::to_string(work.microbatches) + " x " + std::to_string(work.microbatch_sequences) +
          " sequences of " + std::to_string(work.sequence_length) + " tokens";
  if (work.recompute != models::Recompute::kNone) {
    text += ", recompute " + std::string(name(work.recompute));
    if (work.recompute_every > 1) text += " in every block of " + std::to_string(work.recompute_every);
  }
  return text;
}

}  // namespace fsdp::plan
