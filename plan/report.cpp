#include "plan/report.h"

#include "plan/axes.h"

namespace fsdp::plan {
namespace {

int64_t checkpoint_bytes_of(const PlannedModel& model, Optimizer optimizer) {
  int64_t bytes = 0;
  const auto add = [&](const PlannedUnit& unit, UnitRole role) {
    for (const PlannedParameter& parameter : unit.parameters) {
      const auto size = static_cast<int64_t>(io::item_size(parameter.dtype));
      bytes += parameter.numel() * size + (parameter.trains ? state_bytes(optimizer, parameter, role) : 0);
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

}  // namespace

Report make_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options) {
  check(setup);
  check_axes(model, setup);
  return make_report(model, setup, options, plan_activations(model, setup));
}

Report make_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options,
                   const Activations& activations) {
  check(setup);
  check_axes(model, setup);
  const PlannedModel part = part_of_rank(model, setup.tensor);
  const std::vector<std::vector<GroupPlan>> units = plan_units(part, setup);
  Report report;
  report.model = model.name;
  report.setup = setup;
  report.parameters = model.num_parameters();
  report.units = model.num_units();
  if (model.decoder) report.flops_per_token = models::flops_per_token(*model.decoder, setup.work.sequence_length);
  report.checkpoint_bytes = checkpoint_bytes_of(model, setup.optimizer);
  report.step = walk_step(part, units, activations, setup);
  add_axis_calls(model, setup, report.step.calls);
  report.memory = plan_memory(part, units, report.step, options.reserve, setup);
  report.traffic = plan_traffic(units, report.step.calls, setup, options.network);
  return report;
}

std::string describe(const Setup& setup) {
  const Work& work = setup.work;
  std::string text = std::to_string(setup.replicas) + " x " + std::to_string(setup.shards) + " ranks" +
                     (setup.tensor > 1 ? " x tp " + std::to_string(setup.tensor) : std::string()) +
                     (setup.context > 1 ? ", cp " + std::to_string(setup.context) + " of the shards" : std::string()) +
                     ", " + std::string(fsdp::name(setup.strategy)) + ", " + name(setup.precision) + ", " +
                     std::string(name(setup.optimizer));
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
