#include "plan/report.h"

#include "fsdp/base/units.h"

namespace fsdp::plan {

namespace {

std::string rest_text(const Setup& setup) {
  if (!setup.reshards()) return "whole";
  return "in groups of " + std::to_string(setup.forward_group());
}

}  // namespace

Report make_report(const PlannedModel& model, const Setup& setup, const ReportOptions& options) {
  check(setup);
  const std::vector<std::vector<GroupPlan>> units = plan_units(model, setup);
  Report report;
  report.model = model.name;
  report.setup = setup;
  report.parameters = model.num_parameters();
  report.units = model.num_units();
  if (model.decoder) report.flops_per_token = models::flops_per_token(*model.decoder, setup.work.sequence_length);
  report.step = walk_step(model, units, plan_activations(model, setup), setup);
  report.memory = plan_memory(model, units, report.step, options.reserve);
  report.traffic = plan_traffic(units, report.step.calls, setup, options.network);
  return report;
}

std::string describe(const Setup& setup) {
  const Work& work = setup.work;
  std::string text = std::to_string(setup.replicas) + " x " + std::to_string(setup.shards) + " ranks, " +
                     std::string(fsdp::name(setup.strategy)) + ", " + name(setup.precision) + ", " +
                     std::string(name(setup.optimizer));
  if (setup.reshard_after_forward) text += ", weights rest between forward and backward " + rest_text(setup);
  text += "; " + std::to_string(work.microbatches) + " x " + std::to_string(work.microbatch_sequences) +
          " sequences of " + std::to_string(work.sequence_length) + " tokens";
  if (work.recompute != models::Recompute::kNone) {
    text += ", recompute " + std::string(name(work.recompute));
    if (work.recompute_every > 1) text += " in every block of " + std::to_string(work.recompute_every);
  }
  return text;
}

std::string to_summary(const Report& report) {
  const MemoryPlan& memory = report.memory;
  const CallLedger& calls = report.step.calls;
  return "plan: per rank weights " + format_bytes(memory[Part::kMainWeight] + memory[Part::kModelWeight]) +
         ", gradients " + format_bytes(memory[Part::kMainGrad]) + ", optimizer " +
         format_bytes(memory[Part::kOptimizer]) + ", buffers " + format_bytes(report.step.held_bytes) +
         ", activations " + format_bytes(memory[Part::kActivations] + memory[Part::kLoss]) + "; together " +
         format_bytes(memory.total()) + ", at most in the " + memory.where + "\nplan: a step gathers " +
         std::to_string(calls.gathers) + " and reduces " + std::to_string(calls.reduces) + " times; a rank receives " +
         format_bytes(calls.gather_bytes) + " of weights and " + format_bytes(calls.reduce_bytes) + " of gradients";
}

}  // namespace fsdp::plan
