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

struct StageReport {
  Report report;
  StagePlan summary;
};

StageReport report_of_stage(const PlannedModel& model, const Setup& setup, const ReportOptions& options, int64_t stage,
                            const Activations& activations) {
  const RankPart part = rank_part(model, setup, stage);
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
  report.step = walk_step(part, stage, units, activations, setup);
  add_axis_calls(model, part, setup, report.step.calls);
  report.memory = plan_memory(part.model, units, report.step, options.reserve, setup);
  report.traffic = plan_traffic(units, report.step.calls, setup, options.network);
  Setup uncut = setup;
  uncut.tensor = 1;
  const int64_t parameters =
      setup.stages > 1 ? rank_part(model, uncut, stage).model.num_parameters() : report.parameters;
  const StagePlan summary{part.layers, parameters, report.memory.at_rest(), report.memory.total()};
  return {std::move(report), summary};
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
  int64_t worst = 0;
  std::vector<StageReport> stages;
  for (int64_t stage = 0; stage < setup.stages; ++stage) {
    stages.push_back(report_of_stage(model, setup, options, stage, plan_activations(model, setup, stage)));
    if (stages.back().summary.peak > stages[static_cast<size_t>(worst)].summary.peak) worst = stage;
  }
  return put_together(std::move(stages), worst);
}

Report make_stage_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options, int64_t stage) {
  Report report = make_report(model, setup, options);
  if (report.stage == stage) return report;
  std::vector<StagePlan> stages = std::move(report.stages);
  report = report_of_stage(model, setup, options, stage, plan_activations(model, setup, stage)).report;
  report.stages = std::move(stages);
  report.stage = stage;
  return report;
}

Report make_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options,
                   const Activations& activations) {
  check(setup);
  check_axes(model, setup);
  std::vector<StageReport> stages;
  stages.push_back(report_of_stage(model, setup, options, 0, activations));
  return put_together(std::move(stages), 0);
}

std::string describe(const Setup& setup) {
  const Work& work = setup.work;
  std::string text =
      (setup.stages > 1 ? std::to_string(setup.stages) + " stages (" + std::string(name(setup.order)) + ") of "
                        : std::string()) +
      std::to_string(setup.replicas) + " x " + std::to_string(setup.shards) + " ranks" +
      (setup.tensor > 1 ? " x tp " + std::to_string(setup.tensor) : std::string()) +
      (setup.context > 1 ? ", cp " + std::to_string(setup.context) + " of the shards" : std::string()) +
      (setup.experts > 1 ? ", ep " + std::to_string(setup.experts) + " of the shards" : std::string()) + ", " +
      std::string(fsdp::name(setup.strategy)) + ", " + name(setup.precision) + ", " +
      std::string(name(setup.optimizer));
  if (setup.averages == Averages::kEma) text += " with averages of the weights";
  if (setup.reshard_after_forward) text += ", weights rest between forward and backward " + rest_text(setup);
  if (setup.state == StatePlace::kDisk) text += ", state on a disk";
  text += "; " + std::to_string(work.microbatches) + " x " + std::to_string(work.microbatch_sequences) +
          " sequences of " + std::to_string(work.sequence_length) + " tokens";
  if (work.recompute != models::Recompute::kNone) {
    text += ", recompute " + std::string(name(work.recompute));
    if (work.recompute_every > 1) text += " in every block of " + std::to_string(work.recompute_every);
  }
  return text;
}

}  // namespace fsdp::plan
